"""Reports: tables, plots and pages from run directories. Reads runs and reports, never models."""
