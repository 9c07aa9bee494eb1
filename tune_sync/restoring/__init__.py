"""What a restored experiment takes over from what is stored."""
