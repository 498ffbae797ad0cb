-- How many events there are, those that forks share once.
-- → events
SELECT coalesce(sum(length), 0) - (SELECT coalesce(sum(boundary + 1), 0) FROM fork) FROM session
