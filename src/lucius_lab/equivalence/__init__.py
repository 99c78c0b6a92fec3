"""Equivalence: the same scripts played on both engines, and what the engines differ in."""
