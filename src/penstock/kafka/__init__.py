"""Topics of Kafka as exactly-once streams: ranges of offsets, planned in one place, read in others, the same each time.

*What lives here.* `offset` is the form of an offset, and computes the ranges between two of them. `plan` decides what comes next, and
`read` turns a range into Arrow. `cluster` asks the brokers, through clients that `client` makes.

*What may be touched.* Brokers, through `confluent_kafka`, which no other room knows.

*What it may know.* Options, storage for secrets, and what is below; neither sinks nor Spark.

What may happen, and the rule that makes it harmless:

1. A transaction is open when a batch is planned; it aborts later, or commits after the next batch. Rule: a batch ends at the *last
   stable* offset. Everything before it is decided for ever, so a replay reads the same records.
2. Offsets have gaps: markers of transactions, aborted records, records removed by compaction. Rule: a range ends by position, at a
   record at or after its end or where the partition says that it ends there, and never by counting.
3. Retention, or somebody, deletes records that are next, before a batch is planned, between plan and task, or while a task reads. Rule:
   the client never resets (`auto.offset.reset=error`); `RecordsLost`. If the user says that a loss is no failure, the plan begins after
   the gap, notes that (`from`), and warns with the number of offsets.
4. A topic is deleted and made anew, and has as many records as before. Rule: an offset names topics by id; a task compares the id
   before its first and after its last record, because ids never come back. `TopicReplaced`.
5. A partition is added. Rule: it begins with its first record, at offset 0 in a topic that the query knows; if it begins elsewhere, the
   offset notes where.
6. A broker dies, or the leader of a partition. Rule: the client continues as soon as it is back; the task fails when `timeout` has
   passed without a record or an end, and no part of the range was skipped.
7. A leader is elected that did not have all records (unclean), or a leader comes back without its data: the partition is cut, and other
   records take the offsets of some that were planned, or read. Rule: an offset has the epochs of the leaders that reported its ends,
   and everything before such an end is of that epoch or an earlier one. If the leader has changed since the records before a range were
   planned, the task begins by asking the leader to confirm this for them. The task compares the epoch of each record that it takes. At
   its end it asks again if the leader is another one than the plan's, because the records that are there now may be visible to nobody
   (an aborted transaction). `RecordsReplaced`.
8. A query starts from `latest`, or where retention moves on, and its first batch is repeated, or there was none. Spark keeps no offset
   before the first batch, and asks for another one. Rule: the first batch exists even if it has no records, and its end says where it
   began.
9. The topic was made anew, and the epochs of its leaders begin anew: the client takes them for stale, and waits for ever. Rule: a task
   that finds another id than its client has read takes a new client.
"""
