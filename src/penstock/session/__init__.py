"""Local sessions that start fast, and what a machine must have for one; nothing here knows what runs in them."""
