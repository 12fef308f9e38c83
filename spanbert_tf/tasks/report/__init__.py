"""What the reports of all tasks share: the page of records, and tables of classes."""
