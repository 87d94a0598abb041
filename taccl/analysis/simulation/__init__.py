"""Schedules replayed: under other assumptions, where time goes, and how soon the next can follow."""
