-- Hits of an index expression, those logged last first.
-- match: expression; low, high: smallest and largest id; limit: rows
-- → id (of an event, as in search_event)
SELECT rowid FROM search WHERE search MATCH :match AND rowid BETWEEN :low AND :high ORDER BY rowid DESC LIMIT :limit
