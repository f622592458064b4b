"""Accounts of the embedded platform: passwords, logins, removal."""
