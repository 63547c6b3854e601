"""Plans that must stay the same while code is moved and renamed."""
