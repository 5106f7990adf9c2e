"""Reports: tables, plots and web pages from run directories. Reads runs and reports, never models; imports `run`."""
