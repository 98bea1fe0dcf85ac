"""What everything costs: du."""
