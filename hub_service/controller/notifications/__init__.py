"""Notifications to users about their workloads: pages, panels, webhook and e-mail."""

from runai.hub_service.controller.notifications.news import Kind, Notification, RecentNotifications
from runai.hub_service.controller.notifications.settings import NotificationSettings
from runai.hub_service.controller.notifications.watch import Notifier

__all__ = ["Kind", "Notification", "NotificationSettings", "Notifier", "RecentNotifications"]
