"""Reports on routers: tables, figures, pages, comparisons, and explanations of queries."""
