-- Hits of an index expression with how relevant they are, without touching the documents themselves.
-- match: expression; low, high: smallest and largest id; weights: JSON object, what each phrase counts by its words
-- → id (of an event, as in search_event), score (larger is better)
SELECT rowid, relevance(search, :weights) FROM search WHERE search MATCH :match AND rowid BETWEEN :low AND :high
