"""What it costs to compare the ranks while they train."""
