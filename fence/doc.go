// Package fence checks the fencing token of a hold in the transaction that writes, on PostgreSQL, MySQL, MariaDB and SQLite.
// So a holder that was paused, and resumes after another holder has written, commits nothing.
//
//	f := fence.New(fence.PostgreSQL, nil)
//	err := mutex.Do(ctx, func(ctx context.Context, h *coord.Hold) error {
//		return f.Tx(ctx, db, fence.Of(h), func(ctx context.Context, tx *sql.Tx) error {
//			_, err := tx.ExecContext(ctx, "UPDATE report SET body = $1", body)
//			return err
//		})
//	})
//
// # How it works
//
// A table has a row for each lock: its path, and the highest token that has written. The check is one statement, which
// inserts or raises the token, locks the row until the end of the transaction, and refuses a token lower than the stored one.
// So the transactions under one path follow each other, also those of one hold, and once a transaction of a later holder has
// committed, every transaction of an earlier holder is refused. A transaction of an earlier holder that has passed the check
// commits before the check of a later holder returns, or it does not commit.
//
// Create the tables with [Fence.Migrate], or with your own tool from [Fence.Schema]. The package is tested with PostgreSQL 15, MariaDB
// 10.11 and SQLite. MySQL gets the statements of MariaDB, and was not tested.
//
// # What is promised
//
// Transactions of one path are ordered by their tokens, whatever is paused, cut off or killed, if
//
//   - each of them is a [Fence.Tx], or calls [Fence.Check] before its first read and its first write;
//   - all of them go to one server, the primary: Galera, and a MySQL group replication with several primaries, keep the locks of rows
//     on each server by itself, and compare at the commit only rows that have changed. Check of a stored token changes none;
//   - the table is used with one service. Tokens of two services, or of two schemas of PostgreSQL, do not compare;
//   - no older state of the service is restored. Tokens then repeat: stop all holders, and delete the rows or raise the tokens
//     of the service. The same holds for a move to another service.
//
// The first commit of a later holder shuts the earlier ones out, not its grant. So a new holder that reads data to decide on a write
// reads in a fenced transaction that commits. If the function returns an error, the token is not raised.
//
// With coord.MutexOptions.Keep, successive holds of one client can have one token, so they are not fenced from each other.
// Holds that several clients can have at a time, such as those of readers and permits, have no token, and are refused. For a
// coord.HoldSet check the token of each of its Holds, in their order. A claim on an item of a queue is refused too, since its
// token compares only with claims on the same item: see [Fence.Once].
//
// # Isolation levels
//
// Call Check first: then the reads of the transaction see every commit of the earlier holders. Called later, Check still orders
// the writes, but earlier reads of the transaction can miss the last commit of an earlier holder:
//
//	database         level                           Check, if another transaction of the path is under way
//	PostgreSQL       READ COMMITTED                  waits, then compares
//	PostgreSQL       REPEATABLE READ, SERIALIZABLE   waits, then fails with 40001 if the other has committed: run it again. So
//	                                                 do two transactions of one hold at the same time
//	MySQL, MariaDB   all                             waits, then compares with the latest commit, not with the snapshot. The
//	                                                 snapshot is taken by the first read. On MariaDB with
//	                                                 innodb_snapshot_isolation a Check after a read fails with 1020
//	SQLite           its only one                    waits for any writer, as long as the busy timeout of the connection. In
//	                                                 WAL mode a Check after a read fails with SQLITE_BUSY_SNAPSHOT if
//	                                                 another transaction has committed since that read
//
// On MySQL and MariaDB a statement with an implicit commit (CREATE, ALTER, TRUNCATE, LOCK TABLES and others) gives up the lock of the
// row: send none in a fenced transaction, and no COMMIT or BEGIN as text on any database. All tables must use InnoDB.
//
// A deadlock (PostgreSQL 40P01, MySQL 1213) and a time limit of a lock (55P03, 1205, SQLITE_BUSY) are errors of the driver, which
// Tx and Check return wrapped. Nothing is applied then: roll back, and run the transaction again. MySQL can choose a
// deadlock victim when the first transaction of a path is rolled back while several others wait for it.
//
// A transaction whose process is paused, or whose machine is cut off, blocks later holders until the database ends it. Limit
// that with idle_in_transaction_session_timeout on PostgreSQL, idle_transaction_timeout on MariaDB, and wait_timeout on MySQL.
//
// # Beyond databases
//
// [Transport] sends the token of a hold with HTTP requests, and [Handler] receives it. The guide fencing.md has object stores
// and resources of Kubernetes.
package fence
