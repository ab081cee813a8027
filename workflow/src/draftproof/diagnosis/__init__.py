"""Claimed, offline and served acceptance: where is the loss?"""
