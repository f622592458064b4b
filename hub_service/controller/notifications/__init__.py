"""Notifications to users about their workloads: pages, panels, webhook and e-mail."""

from runai.hub_service.controller.notifications.events import (
    Kind,
    Notification,
    RecentNotifications,
)
from runai.hub_service.controller.notifications.notifier import Notifier
from runai.hub_service.controller.notifications.settings import NotificationSettings

__all__ = ["Kind", "Notification", "NotificationSettings", "Notifier", "RecentNotifications"]
