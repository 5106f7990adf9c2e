"""Parts for statewise."""
