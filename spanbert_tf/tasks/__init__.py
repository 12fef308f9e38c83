"""Fine-tuning tasks. Importing this package is cheap: a task's module is loaded when asked for."""
