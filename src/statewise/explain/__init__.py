"""Whether a model of the user's own sequences has understood them: surprises, drift, and one page of figures. Figures
are data first (`explanation`); `page` draws them.
"""
