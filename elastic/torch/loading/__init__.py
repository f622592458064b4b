"""Samples of a training: loader, order, position in an epoch, random numbers."""
