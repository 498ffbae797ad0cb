-- Hits of an index expression, best first, without touching the documents themselves. Tags do not count in the rank.
-- match: expression; low: smallest id; limit: rows
-- → id (of an event, as in search_document), rank (smaller is better)
SELECT rowid, rank FROM search
WHERE search MATCH :match AND rowid >= :low AND rank MATCH 'bm25(1.0, 0.0)' ORDER BY rank LIMIT :limit
