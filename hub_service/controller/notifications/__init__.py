"""Tell people what happened to their workloads: on pages and panels, by webhook and by e-mail."""

from runai.hub_service.controller.notifications.news import Kind, Notification, Recent
from runai.hub_service.controller.notifications.settings import NotificationSettings
from runai.hub_service.controller.notifications.watch import Notifier

__all__ = ["Kind", "Notification", "NotificationSettings", "Notifier", "Recent"]
