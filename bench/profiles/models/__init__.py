"""The networks of the shipped training steps, written here so that no other package changes them."""
