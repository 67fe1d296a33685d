"""Topics of Kafka as exactly-once streams: ranges of offsets, planned in one place, read in others, the same each time.

*What lives here.* `offset` is the form of an offset, and says what lies between two of them. `plan` says what comes next, and `read`
turns a range into Arrow. `cluster` asks the brokers, through what `client` makes.

*What may be touched.* Brokers, through `confluent_kafka`, which no other room knows.

*What it may know.* Options, storage for secrets, and what is below; neither sinks nor Spark.

What may happen, and the rule that makes it harmless:

1. A transaction is open when a batch is planned; it aborts later, or commits behind the next batch. Rule: a batch ends at the *last
   stable* offset. What lies in front of it is decided, for ever; so a replay reads the same records.
2. Offsets have gaps: markers of transactions, aborted records, what compaction took. Rule: a range ends by position, at a record at or
   behind its end or where the partition says that it ends there, and never by counting.
3. Retention, or somebody, deletes records that are next, before a batch is planned, between plan and task, or while a task reads.
   Rule: the client never resets (`auto.offset.reset=error`); `RecordsLost`. Where the user says that it is no failure, the plan begins
   behind the gap, notes that (`from`), and warns with the number of offsets.
4. A topic is deleted and made anew, and has as many records as before. Rule: an offset names topics by id; a task compares the id
   before its first and behind its last record, as ids never come back. `TopicReplaced`.
5. A partition comes. Rule: it begins with its first record, offset 0 in a topic that the query knows, and the offset notes where it
   began otherwise.
6. A broker dies, or the one that leads a partition. Rule: the client goes on as soon as it is back; the task fails when `timeout` has
   passed without a record or an end, and nothing of the range was passed over.
7. A leader is elected that had not got all records (unclean), or comes back without its data: the partition is cut, and other records
   come to stand where some stood that were planned, or read. Rule: an offset has the epochs of the leaders that its ends were asked of,
   and what lies in front of such an end is of that epoch or an earlier one. A task begins by having the leader say so of the records in
   front of its range, where the leader has changed since they were planned; it compares the epoch of each record that it takes; and it
   ends as it began if the leader is another one than the plan's, as what stands there now may be seen by nobody (an aborted
   transaction). `RecordsReplaced`.
8. A query starts from `latest`, or where retention goes on, and its first batch is repeated, or there was none. Spark keeps no offset in
   front of it, and asks for another one. Rule: the first batch is one also if it has nothing, and its end says where it began.
9. The topic was made anew, and the epochs of its leaders begin anew: the client takes them for old news, and waits for ever. Rule: a
   task that finds another id than its client has read takes a new client.
"""
