"""What is shown: tables, figures, pages."""
