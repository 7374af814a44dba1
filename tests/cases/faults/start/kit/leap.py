def is_leap(year):
    """Whether the year has a 29th of February in the Gregorian calendar."""
    return year % 4 == 0 and year % 100 != 0
