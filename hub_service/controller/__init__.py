"""Control loop of the service, usage history, idle GPUs and notifications."""
