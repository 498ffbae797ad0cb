-- How many hits an index expression has.
-- match: expression; high: largest id
-- → hits
SELECT count(*) FROM search WHERE search MATCH :match AND rowid <= :high
