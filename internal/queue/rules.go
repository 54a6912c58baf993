package queue

// The rules of the queues. Comments and tests name them by their numbers.
//
// # Nodes
//
//	<queue>                              a container
//	<queue>/items                        persistent; its data is empty, or see W9; its version counts the buckets made under P2
//	<queue>/items/tally                  its version continues that count when the versions of items are used up
//	<queue>/items/in                     of a queue with MaxLen: its data counts the items that came in (L1)
//	<queue>/items/out                    of a queue with MaxLen: its version counts the items that went out, its data is empty
//	<queue>/items/b-<key>-<n>            a bucket; version 0: open, else closed
//	  i-<id>-<due>-<sequence>            an item: the bytes that Put was given, nothing else
//	  s-<id>                             its state, from the first claim on: how often it was claimed (layout.Attempts)
//	  m-<id>-<guid>                      its claim (the mark): ephemeral, made by the consumer
//	  d-<id>-<time>                      the item is put off until then, in milliseconds by the service's clock (W7);
//	                                     its data is empty or, in JSON, why the attempt before has failed (layout.PutOff)
//	  r-<id>                             of a dead letter: why it was moved, in JSON, and what a Redrive needs (D1)
//	  o-<id>                             of an item with options: layout.ItemOptions, in JSON (O1)
//	  t-<id>-<traceparent>               the trace context of the producer of the item (O4)
//	  k-<id>-<hash>-<until>              of an item with a key: the hash of the key, and its time or 0 (K1)
//	<queue>/keys/<xx>                    persistent; of the keys whose hash begins with xx
//	  h-<hash>                           the item that has the key: layout.KeyHolder, in JSON (K1)
//	  u-<hash>-<until>-<id>              of a key with a time (K6)
//	<queue>/waiters/slot-<i>             a client that waits and watches the items; waiters is a container
//	<queue>/waiters/_c_<guid>-take-<seq> any other client that waits
//	<queue>/producers                    the same for clients that wait for room: _c_<guid>-put-<seq>
//	<queue>/dead                         a queue of its own, for dead letters
//
// The key of a bucket is 0 in a Queue, the priority in a PriorityQueue, and the
// minute of the due time in a DelayQueue, or its hour or day (D4). Buckets are read in the order of their
// keys, and the buckets of one key in the order of their numbers.
//
// Why buckets: one packet cannot carry a list of 50,000 names, and no take may read
// the whole queue. Why the states of items are beside the items: one list of a bucket
// is one snapshot of its items, of their claims and of their due times. The size of
// a bucket is bounded by the number of producers, see P3.
//
// # Putting
//
// P1. A put is one commit {check(bucket, version 0), create the items}, applied
// exactly once (CommitOnce). So an item never lands in a closed bucket, and a lost
// reply does not create a second item. The id is part of the name, so the caller
// knows it even if the reply is lost.
//
// P2. For each key at most one bucket is open, the one with the highest number.
// Otherwise two producers could put into different buckets, and the order of
// creation would be lost. Hence a bucket is closed and the next one made in one
// commit {set(bucket, version 0), create the next}. If a key has no open bucket,
// one is made by {set(items, version v), create bucket}, where v was read together
// with the list that showed no open bucket. That commit increments the version of
// items, so it fails for a producer that was paused since its list. The directory
// of items is not a container: if it were reaped, its version would begin again,
// and a paused producer could make a second open bucket.
//
// A producer learns from a failed commit that the last bucket of its list is
// closed. That is not sufficient: when all buckets of a key are removed, the
// numbers begin again, and the list can show a new, open bucket of the same name.
// So the producer reads the bucket once more, after a list that is newer than the
// failed commit. If the version is 0, the bucket is open. Otherwise the bucket was
// already closed at the time of the list if its last change is not newer than the
// latest change of the children of items that the list shows, because every close
// creates a child of items. (A close by an outsider creates none. It is accepted if
// a second list shows no change of the children since the first.)
//
// P3. The creation of an item shows how full its bucket is: by the number of siblings, other nodes than items included,
// or, where the service does not tell that, by the sequence number, which counts the
// nodes that the bucket was ever given. A producer whose item makes the bucket reach the
// limit closes the bucket in the same commit as its next put. So a bucket holds at most the limit, 256, plus one put of
// each producer that puts into it at the same time. A put is up to 128 items. A
// larger PutAll closes the bucket in the same commit, and puts the rest into further buckets that the commit makes, up
// to the limit in each. So it costs a list, which shows how many buckets there is room for. 60
// producers that call PutAll at the same moment can make a bucket of 8,000 items,
// whose list takes half a MB, and more if many of its items are claimed. A hundred
// such producers can come near the maximum size of a packet.
//
// # Taking
//
// T1. A consumer lists buckets up to the first one that contains an item to take,
// and none behind it.
//
// A consumer remembers the names that a list has shown (ahead), and claims items by them
// without another list: 32 of them at most, within a second, and until two claims fail. A
// claim fails if another consumer has had the item. If another consumer gives an item back in the
// meantime, this client takes it later. If this client gives an item back, it forgets the names,
// and so sees the item. A Queue lists again before the names are used up (T15). A PriorityQueue remembers no names, since it must see an item of a higher
// priority. It lists for each take, behind a Sync: the buckets, and at the same time the bucket
// that was first at the last take.
//
// T2. A claim is one commit: {check(item), create its state, create the mark} for
// the first claim of an item; {check(item), set(state, version read), create the
// mark, delete d} for a later one. The state has a fixed name and a version that
// each claim increments, so of two consumers with the same snapshot one fails. The
// state is persistent: the attempt is counted even if the consumer dies. The
// version must be that of the snapshot in which the item was free, see
// readAttempts in claim.go.
//
// The items are read beside the commit that claims them, or before (T13): their data does not change. If
// the claim fails, the data is dropped.
//
// One commit may claim several items that were never claimed. An item that has a state is
// claimed alone (atOnce): all items of a commit lose an attempt if the consumer dies, and one
// of them can be the reason. So an item that no caller has received loses one attempt at most
// in this way, and if MaxAttempts is 1, every item is claimed alone.
//
// T3. The name of a mark is never used again. Every later operation of the holder
// (ack, nack, giving back) deletes its mark in the same commit, so it never touches
// the claim of the next consumer, however late it arrives. Only the mark decides:
// if an outsider has removed an item or a state, the operation continues without it.
// An item without its state is still moved to the dead letters. If an outsider
// created a child of an item, the item cannot be deleted, and the error is
// returned. The mark is the node of the Hold.
//
// T4. Ack = {delete mark, state, item}. Nack = {delete mark, create d}, or without a delay
// {delete mark, set(state)}. Giving back = {delete mark, set(state)}, or delete(state) where there
// was none. The number in the state has a sign after a Nack without a delay (layout.Attempts). So
// a state without the sign, if there is no d, belongs to a claim that was lost: the next delivery
// reports that. Giving back restores the state that the claim has found. The item stays where it
// is, so it keeps its place. When a session expires, its marks are deleted and nothing else. Each of
// these commits is applied exactly once or not at all. Several Acks can share a commit, see ack.go.
//
// T5. A claim is not cancellable: it is made for all callers that wait. If a caller
// has given up in the meantime, its item is given back, and until that is done the
// client takes nothing else. If the service refuses to let the item be given back,
// the item stays claimed, the client retries in the background as long as the
// session lives, and it takes later items in the meantime: then the order is not
// kept. A Pop that is refused, or whose context ends, gives its item back in this
// way. If the outcome of the Pop's delete is unknown, the delete may be applied
// before the item is given back; then the mark is gone, and nothing is left to be
// done.
//
// T6. A consumer deletes an empty bucket, unless it is the last one of the list. (A
// closed bucket is never the last.) The service refuses if the bucket is not empty
// any more. The last bucket is kept, so that the numbers of a Queue only grow, and
// a consumer can list the bucket that was first at its last take before it lists
// all buckets. (A bucket that was first stays first as long as it exists.) A Purge
// deletes empty buckets in the same way. So does a producer, with all empty
// buckets, before it fails with ErrLimit.
//
// T7. If an item was claimed as often as MaxAttempts allows, the next consumer that
// sees it moves it to the dead letters. If the service refuses that, the client
// logs it and ignores the item for a minute.
//
// T8. A claim that is not ended within ClaimTimeout is ended by the client that made it.
// The hold is marked as lost before the mark is deleted, and nothing but the hold
// decides whether an Ack or the timeout commits. The commit is that of a Nack or of a
// move to the dead letters (T4). The client takes nothing else until that commit was
// answered once, so it does not pass over the item. An item that no caller has received
// in the time is given back instead, as in T5. A handler of Work that runs on frees its place after
// the hold was marked as lost, so its item precedes the next one that Work takes; see crew in work.go.
//
// T9. A Pop reads the item behind its own beside its deletion, if that item was never claimed and
// its name is remembered (T1), and further items with it (T13). It does not read an item with a due time by the service's clock, since
// only a claim can be given back if it was too early (W7). Without a claim, the next Pop deletes the
// item that was read, in one commit: {delete(item), absent(state)}. The commit fails if another consumer has claimed
// the item since the list, as in a claim (T2), and it is applied exactly once or not at all. So
// its outcome is as definite as that of a deletion under a claim, and there is nothing to give
// back. In a Queue, a Pop without such a read lists and reads first, if the list before
// has shown an item at once and no race was lost lately: it takes as many round trips as a claim
// would, and one write less. The rules for names that are remembered decide whether the Pop may rely on the
// read, and while an item is being claimed or given back, it may not (T5). If the read, the codec
// or the commit fails, the names are forgotten, and the Pop claims an item first. If two items
// within a second were gone, a race was lost (W5), although the list did not follow a Sync:
// consumers that pop have equal lists, and would otherwise compete for each item. A claim of this
// client takes the item of a Pop only if there is no other item; this is no lost race, nor is a Remove
// or a Purge by the same queue value, which makes the Pop forget the names. On a service that has
// no space for a claim, a Pop reads the first item after a Sync and deletes it in the same way.
//
// T10. A handler of Work that has returned nil wants the next item. If the client remembers such an item (T1),
// the Ack claims it in its commit: {delete mark, state, item} of the old item, then {check(item), create its
// state, create the mark} of the next one. So an item of a backlog costs one write. The Acks that share a commit
// (ack.go) claim an item for each handler that wants one. The commit is applied if and only if each of its Acks
// and claims would be, so the rules T2 to T4 hold for each of them.
//
//   - If the commit is refused, its Acks are sent again without claims (ack.go), so an Ack waits for one round trip
//     more at most. A lost race counts as the first of the two failures of T1, and the client makes no such commit
//     before it has claimed an item by a commit of its own: so consumers that compete for each item send no more
//     requests than they would without these commits. Nor does it claim an item with an Ack that has waited behind
//     the refused commit.
//   - An unknown outcome is resolved as that of each commit (CommitOnce). If it stays unknown, each Ack returns
//     the error, and the marks of the next items are removed.
//   - The feeder decides about the next item if another caller waits for one, or gets one from the feeder, or if an
//     item is being given back (T5, T8). The feeder claims nothing for another caller while such a commit is under way,
//     or while its items are read on their way to Work. In this time no commit claims items for another call of
//     Work, and each commit claims for one call. So if these items are given back since Work has ended, no other
//     caller of the queue value has passed over them. When Work has them, they count as handed out: if Work ends
//     before their handlers begin, another caller can have passed over them, as over items of the feeder.
//   - While only this Work has requested items, its Acks claim beside the feeder. Otherwise each Ack that comes while
//     the feeder claims would free a place, for which Work asks the feeder again. The request of Work is answered by the
//     commit that ends first; the items of the other one are for its next request. So there are never more claims than
//     places. The feeder does not list items meanwhile, since the list could show an item that an Ack claims.
//   - The loop of Work decodes the item, as any other. If Work has ended meanwhile, the item is given back (T4)
//     before Work returns, and before Close ends the session.
//   - Only an item that was never claimed is taken in this way, and none if MaxAttempts is 1. So a session that
//     is lost after the commit, before a handler has seen the item, cannot make it a dead letter.
//   - Nothing is claimed in this way with Prefetch, since the items in stock come first.
//
// T11. In a PriorityQueue an item waits as long as there are items with lower numbers. With FairEvery n, one of n
// takes of a queue value is a turn: it takes the first item of another priority than the lowest, if one can be
// taken. It chooses that priority at random, from the latest list of the buckets, and lists its first bucket
// beside the two lists of the take (T1): so a turn costs one request more, and no round trip. The first take of a
// queue value knows no such list, and is no turn. If the bucket is empty, the turn deletes it (T6): otherwise the
// next turn of that priority would find it again. A consumer that waits in a slot has no turn, since its latest
// list has shown no item that can be taken.
//
// T12. A consumer remembers closed buckets in which every item was put off, or not due, and none was claimed, with the earliest
// time of each. Before that time, no later walk lists the bucket: so items that were put off cost nothing when another item comes.
// The consumer wakes at that time (W7). In between, nothing can be taken from the bucket:
//
//   - No item is added. The list of the directory, which came before that of the bucket, has shown the next bucket of its key, so
//     the bucket was closed (P1, P2). An open bucket is never remembered, nor is one that was listed beside the directory.
//   - No item is given back. It would have to be claimed before, and no item is claimed before its time. So a bucket with a
//     claimed item is not remembered.
//   - It is the same bucket, if the directory has the czxid and the version that it had when the bucket was remembered. A bucket of
//     the same name can follow only when all buckets of the key are gone, and the first new one increments the version (P2). So
//     in a DelayQueue and a PriorityQueue the first bucket of any key makes the next walk list the remembered ones again.
//
// None of this depends on a watch, so it also holds after a Sync, and on a service whose events can come later than reads of other
// nodes. The clocks that judge due times can be wrong, though (W7): another consumer can have claimed an item early, as it seems
// here, and given it back. An outsider can remove a node d. Therefore the list of such a bucket arms a watch, which stays armed
// beyond the walk, and the consumer forgets a bucket that changes. A holder of a slot watches each closed bucket in this way. Any
// other client does so only while it finds items, and from the second list of a walk on: otherwise a change of a bucket would send
// an event to each client that waits in the line.
//
// T13. A client reads remembered items (T1) together: when it takes the first one that is not read, or, without Prefetch, the last one
// that is, one request beside that commit reads up to 16 items. Later claims, Acks (T10) and Pops (T9) find them read. So an item of a
// backlog costs little more than its share of a commit.
//
//   - The data is right if the claim succeeds: the read follows the list on the same session, the item is there at the claim, no
//     client changes its data (T2), and no name is used twice (D3). A name is taken together with its data, and forgotten with it.
//     A list that is renewed (T15) keeps the data of the names that it still shows. (If an outsider overwrites an item, a consumer can
//     get the data of two seconds ago.)
//   - Only the data of the item counts. If its read has failed, for whatever reason, it is read again with its claim, as is an item that
//     was claimed before or has options. Only a read that was made for the claim shows that an item has vanished.
//   - The client reads as many items as the list before has given, or as this one has given so far, from 4 on. After a lost
//     race (T1, T9, T10) it reads none by this list, and begins anew with the next one, but not while it skips items since others
//     take from the head (W5). So consumers that compete do not read items that others take, and a consumer that takes
//     few items within a second reads few that it does not take.
//   - It reads at most 64 KiB, if the items are no larger than the largest one of the latest read, and drops what exceeds that.
//   - Only claims and Pops of these items wait for the read. The waits end as those for other reads do. Close joins it.
//
// T14. With Prefetch, a handler of Work that has returned nil leaves its place before its Ack, as long as fewer than Prefetch - 1 such
// Acks are under way. So the next handlers begin meanwhile, and their Acks share the next commit (ack.go). The items are those of the
// stock, which are claimed already, so their order does not change, and no Ack waits longer than before. A handler that has failed leaves
// its place when its item is given back, since that item precedes those that the feeder claims next. A handler of an item that has no
// attempt left keeps its place until the Ack: if the session is lost first, the item becomes a dead letter although the handler has
// succeeded, and no further item shares that.
//
// T15. Without a new list, every 32nd claim of a Queue would wait for one (T1), and the Ack before it would claim nothing (T10). So when
// four claims are left, and the list shows more items than that, the client lists the bucket again beside the claim. The new list takes
// the place of the old one, with a second and 32 claims of its own.
//
//   - The list can miss what commits that are under way change. Of the items that it shows, the client leaves out those that it has
//     taken from the old list. If it has given one back meanwhile, or the feeder has begun a list, it drops the new list, as any
//     list that has become too old (T5).
//   - A client that has lost a race by the old list, or skips items since others take from the head (W5), lists as without this rule.
//     So does one with Prefetch, which seldom lists, and one with a DelayQueue.
//
// # Options of an item
//
// O1. An item that was put with options has a node o, which is created in the commit of the put, behind the items. It is
// a persistent node of its own, since the data of the item is that of the codec, and since its name must not change.
// No client changes it. An item without options has none, so its put is as it was.
//
// O2. A claim reads o beside the item, or, if the item was claimed before, beside its state (T2): only then can its
// attempts be used up, and its MaxAttempts decides about that. If o is gone, or an outsider has overwritten it, the
// item has the options of the queue. A list shows that an item has an o, but not what is in it: an item with an o
// is claimed as if its MaxAttempts were 1, alone (T2) and not beside an Ack (T10), and a Pop claims it (T9).
//
// O3. Each commit that deletes the item deletes o as it deletes r (D1). A dead letter has no o: its r has the data,
// from which a Redrive makes o again. If r was left out, the options are lost. A client that does not know o goes by
// the options of the queue and leaves o behind, and the next consumer that knows it removes it as litter. If a
// Redrive finds such an o under the name that it would create, it keeps that node: the data is the same.
//
// O4. With TraceParent of QueueOptions, the put of an item creates t, whose name has the traceparent of its producer. It is made and
// deleted as o is, and survives the dead letters in the same way. The list of a bucket shows it, so nothing is read, and such an
// item is claimed with others (T2), beside Acks (T10), and popped without a claim (T9).
//
// # Keys of items
//
// K1. An item that was put with a key has a node k beside it, and the key has a node h, which names the item. The commit
// of the put creates both, behind the item. If h exists, the commit is refused, so of the puts with one key that
// come at once one is applied. The list of a bucket shows the keys of its items, so no claim, Ack or Pop needs a read more: such
// items are claimed with others (T2), beside Acks (T10) and popped without a claim (T9). A Put with a time (KeyFor) adds u,
// and the time to the name of k. The time is that at which KeyFor has certainly passed since the put by the service's clock.
//
// K2. Each commit that deletes the item deletes k and h, as it deletes o: the key is free. But an Ack or a Pop of an item with a time
// leaves h and u: the key stays in use until that time. The other ends delete u too: a move to the dead letters, a Remove, a Purge.
// The r of a dead letter has the hash and the time, from which a Redrive makes the nodes again, in its commit. If
// another item has the key, the item stays in the dead letters. If r was left out, the key is lost.
// An item without k has no key (K3), so a move to the dead letters that finds k gone leaves the key out of r.
//
// K3. While the k of an item exists, h names that item: a commit that deletes or replaces h deletes k as well, or comes from a
// client that has found k gone (K4). So a commit that deletes k may delete h at any version. Each node of a key that
// is gone, or cannot be deleted, is left out, as a reason is (D1), and without k the commit leaves h and u alone: another
// item can have the key. An item whose k an outsider has deleted has no key any more. If an outsider deletes h and leaves k,
// another item can get the key, and the end of the first item deletes the h of the second one. A condition on the version of h
// does not prevent that, since each new h begins with version 0. A node of the item below h would, at one node more for each key.
//
// K4. A put that is refused since h exists reads, after a Sync: h, then the k and the u of the item that h names, then h again. If k exists,
// the key is in use. If h has changed, it begins again: the item can be a dead letter that a Redrive has moved to another
// bucket, with another k. Otherwise there was no k for this h at the time between the reads, and there will be none: a commit
// that creates k creates or replaces h. Then the key is in use until its time has certainly passed, and without a time it is
// free. So whatever an outsider writes into h or an earlier version leaves behind, the key is not in use for good. (A k below which an
// outsider has made a node stays, with the key in use, until that node is gone.) The put is sent again with set(h, version read) in
// place of the creation. If h was deleted and created in between, the new node can have the same version. So the commit also deletes
// the u of the item that h named: this u goes with its h, and no other item has a u of that name. It was there between the two
// reads of h, unless an outsider has deleted it. (Then, and if an outsider has deleted k of an item without a time, the version alone counts.)
//
// K5. With a key, a put that finds no room (L3) reads h before each wait: another put can have taken the key since. It also reads h before it
// waits for another put of its queue value that waits for room. A put in a transaction reads h
// before its commit, since it is expanded without knowing why the service has refused it. If the requests before it in the
// transaction delete h, or k after the time has passed, an AckOp frees the key.
//
// K6. The nodes u are for collecting: one put in 32 with a time, in a transaction too, lists the directory of its key after its
// commit, in the background. For each u whose time has certainly passed, or for 128 of them from a random one on, it reads as in K4, and
// deletes u, and h if that names the same item and k is gone. The deletion of u is the condition that h is still the one that was read.
// If h names another item, u is deleted on the condition that the k of that item is there. Without it, a Redrive can have made h and u of
// the first item again since the reads, and this h would lose its u. The nodes h and u of a key are
// in one of 256 directories, so that a list fits into a packet while a million keys have a time. These directories are persistent:
// containers would be removed whenever their keys are free, and the next put would have to make them again.
//
// K7. A client that does not know k leaves it behind when it deletes an item. The next consumer that knows it removes it as
// litter, with h if there is no time. Until then the key is in use. In a bucket with other items that is when those are gone.
//
// # Dead letters
//
// D1. A move to the dead letters is one commit, that of P1 with the deletion of the item and
// its nodes: {delete mark, state, item} for a holder, {delete(state, version), item, d} where
// no consumer holds it. It also creates r, a layout.DeadReason, behind the item. It leaves r
// out if the commit would exceed the limits of the service with it, or if an outsider has
// made that node. Each commit that deletes an item deletes its r as well, if the list
// showed one; an r that is gone, or cannot be deleted, is left out. Clients that do not know
// r leave it behind, and the next consumer removes it as litter.
//
// D2. A Redrive moves items in the other direction, in one commit: {delete(item), delete(r),
// and absent(state) or, for an item that was claimed before, delete(state, version read),
// delete(d)}, and a put (P1), with its o (O3). As in a claim (T2), the state makes the commit
// fail if a consumer has claimed the item since the list; so does Remove, whose commit is the
// same without the put. Exactly one of a Redrive, a Remove, a claim and a move succeeds.
//
// D3. No name of an item is used twice, although its id is: a consumer that was paused since
// an old list must not claim by it. In a Queue, and so in the dead letters, the numbers of
// buckets and items only grow. In the other queues a bucket can be made again with the same
// number, so there the due time in the name is new: 0 for an item that had one, else one less
// than the last (layout.DeadReason.DueAgain). Times up to 0 are always due.
//
// # Due times
//
// D4. The key of a bucket of a DelayQueue is the minute of its items as long as the queue has few
// buckets. Where it has many (two of five that it can have), an item that is due in more than a day
// goes into a bucket whose key is the hour, and an item that is due in more than thirty days into a
// bucket whose key is the day, unless a list shows a bucket of its minute. No key is later than the due
// times of its items, so a consumer of any version finds each item in time: from the beginning of that
// hour or day on, each walk lists the bucket.
//
// # Waiting
//
// W1. A consumer that finds nothing takes one of k slots (k is itemSlots) or, if all are taken,
// makes a waiter: see slotLine, which has the rules and says what they guarantee. The holders of
// slots watch everything that can make an item available: the list of buckets, the buckets that
// they have passed, and the clock where an item is put off (W7). So a put wakes k clients however
// many wait, and a claim at most two more. An available item waits only while all k holders are
// dead, cut off or paused, and only until the session of the first of them has ended. Dead
// consumers do not collect among the holders, since each takes its slot itself.
//
// W2. A consumer that claims deletes its slot in the same commit, or its waiter. Another one
// takes the slot, and then looks for further items.
//
// W3. When the session of a dead consumer ends, its mark is deleted. The mark is a child of a bucket that
// the holders of slots watch.
//
// W4. The callers of one Queue value share one waiter, one set of watches and one
// claim: see feed.go.
//
// W5. A consumer whose claim fails reads again after a Sync; otherwise it could see
// the same stale snapshot for ever. If the failed snapshot was not read after a
// Sync, the failure proves nothing, and nothing else of the snapshot is claimed:
// the item may be free, and it precedes the others. If it was read after a Sync and
// another consumer has the item, a race was lost. In a Queue, the next attempt then
// skips a random, small number of items, because the competitors look at the same
// head; in a PriorityQueue the next attempt tries the first item again. An item that has
// vanished is not a lost race. If it vanishes twice in a row, the tree of the server
// has diverged from the trees of the other servers: the list comes from this server, and
// the refusal from the leader. The client ignores the item for a minute, as in T7. No
// live item is ignored, because no name is used twice.
//
// W6. Producers that wait for room do not form a queue: one of each queue value watches the
// node out, see L6.
//
// W7. An item that is put off, or not due, can be taken when the service's clock
// certainly shows its time: the session keeps an interval that contains the difference
// of that clock from the local one, see internal/serviceclock. The
// clocks of clients do not matter, so a slow one delays nothing, and a fast one takes
// nothing early. Where the interval is not known, a client that waits learns it from the
// creation of its slot or waiter, and any other from a small write (core.Session.Learn).
// A holder of a slot wakes when its lower bound reaches the first due time. If the
// interval will be too wide by then, it wakes when the upper bound does, and learns.
// It also wakes when its contact changes, since the service can have another clock
// then. If the service has no clock, the clocks of the clients count.
//
// The interval can be wrong: the clock was set since the latest sample, or by less than a sample
// shows, or another leader with another clock makes the commit. So the stamp of a claim's commit
// decides, which is exact: both it and the due time are whole milliseconds. If the stamp is before the
// time of an item, no caller gets the item. The client gives it back (T5) and, with it, the node d, which
// the claim has deleted (T2). That d is empty: a claim does not read why the item was put off. The same stamp is a sample that does not fit the interval, so the client
// learns the time from it, and makes no further early claim. (It makes one more if the allowance for
// drift hides that the sample does not fit.) If the client dies in between, its claim is lost like any
// other: the attempt counts, and d is gone.
//
// So no item is early. An item is late by at most the width of the interval (a millisecond, the time of
// a request, and up to 100 ms of drift when the latest write was minutes ago) and the time of the take. If the
// service's clock was set ahead, the client does not know of that before its next write or break of
// contact: until then the item is late by at most the step, too. A holder of a slot that waits for a due
// time does not look again because of a write to another path, so it can be late by the step after that write.
//
// W8. A put wakes all holders of slots, and one of them gets the item. A holder whose claim has
// failed since it took its slot calls Sync before its next list, with a probability of two in
// three. So, of k holders, about two claim at once, and the others mostly see an item that is
// claimed already, and send no claim. If the holders that claim at once are dead, the item waits for one
// round trip more. A holder that has lost no race sends no Sync.
//
// W9. A put that makes a bucket in a DelayQueue writes the key into the directory of items, with the
// commit that increments its version (P2). A holder of a slot whose list showed no bucket that is
// due, when it sees a change of the directory, reads that node instead of the list. If the version
// is that of its list, or one more with a key that is not before the first of its list, nothing has
// come that is due before, and it watches the directory again from that read on. So a put for
// a new minute costs a waiting client two small requests, however many minutes there are. A put by an
// earlier version of coord, which does not write the key, costs it a list. (Other changes of the directory do not
// matter then: a bucket that follows a full one has the key of that one.)
//
// W10. The holder of a slot of a Queue keeps its list of the directory of items, with the watch, until that watch fires. So a
// put, and a claim of another consumer, cost it one list, that of the bucket. No new bucket precedes the ones that it
// knows (P2), and where events can come late, it misses the new one until the event comes, as it does while it waits.
// It lists the directory for a call that does not wait, which must see what was put before, and after a lost race (W5).
//
// # Limits
//
// L1. The length of a queue with MaxLen is in - out. Both numbers wrap at 2^32. A put of n items
// adds n to in, in its commit, on condition that in has the version that it read. So no other
// put can come between its look at the length and its commit: the limit is never exceeded, not
// even for a moment. When the versions of in are used up, the commit replaces the node.
//
// L2. A commit that deletes n items (Ack, Pop, Purge, the move to the dead letters) sets out n
// times, at any version. So consumers do not compete, and need not know the number. The versions
// of out wrap like the numbers.
//
// L3. A producer puts by the numbers that it remembers, if they show room. A stale out makes the
// queue seem longer than it is, and with a stale in the commit fails. If the numbers show no room, the
// producer reads both nodes, if need be after a Sync. It reads in first: if the queue seems to be full,
// then it was full at the time at which out was read.
//
// L4. A consumer learns from any list of items that there is a node out, also if it has no MaxLen
// itself. A producer with MaxLen makes the node in or before the commit of its first item, so
// the list that shows a bucket shows out as well. (A consumer that knew the first bucket before
// there was a node out does not count until it lists items again, when that bucket is used up.)
// If a commit finds that the node is gone, the consumer continues without it, until a list shows
// it again.
//
// L5. The numbers can be wrong: a client without MaxLen puts, an outsider deletes items or one of
// the nodes, a consumer claimed its item before there was a node out. So a producer that finds
// the queue full, or finds no sensible numbers, lists the items and repairs the numbers. It does
// so in a commit under the version of in that it read before the list, so no put is left out.
// It reads out once more after the list: an item that is deleted later was counted in
// the list or is counted by out, so the repaired length is never too small. The repair sets out as well,
// which wakes the producers that wait. To keep the costs flat, a queue value whose list took n
// requests, more than a few, does not list again before n of its puts have found the queue full.
//
// L6. A producer that waits watches out. It also watches a few of the items that it has listed,
// the last one among them. If one of these is gone and out does not account for it, the producer
// counts again. So a queue that is emptied without being counted does not block it for ever.
// The callers of one queue value take turns, see limit: one of them watches. Of the producers of
// different clients, roomSlots have slots and watch, see slotLine. A producer that has put its items,
// or gives up, vacates its slot. If items have left since it read out, the next producer wakes at once.
