-- Hits of an index expression, best first, without touching the documents themselves. Parts of names count half, tags
-- do not count in the rank.
-- match: expression; low, high: smallest and largest id; limit: rows
-- → id (of an event, as in search_event), rank (smaller is better)
SELECT rowid, rank FROM search
WHERE search MATCH :match AND rowid BETWEEN :low AND :high AND rank MATCH 'bm25(1.0, 0.5, 0.0)'
ORDER BY rank LIMIT :limit
