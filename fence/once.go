package fence

import (
	"context"
	"database/sql"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// maxItem is the size of the column for items in MySQL, in bytes.
const maxItem = 255

// Once inserts an item into the table of items, and reports whether the item is new. If it is, handle the item in the same
// transaction. If not, a committed transaction has handled it: acknowledge the item. A second call for the item in one transaction,
// as for a duplicate in a batch, returns false too, although nothing is committed yet. If another transaction with the item is
// under way, Once waits for its end, with the exceptions of Check in the package comment.
//
// In the function of [Fence.Tx] call Once with its tx, and return nil if the item is not new.
//
// item is UTF-8 of 1 to 255 bytes without NUL, such as coord.Item.ID, which is unique for all queues of a service and stays when the
// item is delivered again or returns from the dead letters. For steps in transactions of their own, append the name of
// the step. Once needs no token: a consumer that was paused is not the first. Errors are those of Check, without ErrFenced.
func (f *Fence) Once(ctx context.Context, tx Execer, item string) (first bool, err error) {
	if err := f.valid(); err != nil {
		return false, failed("once", "", err)
	}
	if item == "" || len(item) > maxItem || !utf8.ValidString(item) || strings.Contains(item, "\x00") {
		return false, failed("once", "", invalid("the item %.300q, want 1 to %d bytes of UTF-8 without NUL", item, maxItem))
	}
	args := []any{any(item)}
	if f.dialect == MySQL {
		args[0] = []byte(item)
	}
	n, err := f.exec(ctx, tx, f.once, args)
	if err != nil {
		return false, failed("once", "", err)
	}
	return (n == 0) == (f.dialect == MySQL), nil
}

// Prune deletes the items that Once has inserted longer ago than age, by the clock of the database, and returns their number. An
// item that comes back after that counts as the first again. So age must exceed the time between the first handling of an
// item and its last possible one: the time that it can wait in the queue and among the dead letters, until it is acknowledged,
// and the age of any backup of the service that may be restored. age must be a second or more.
func (f *Fence) Prune(ctx context.Context, db *sql.DB, age time.Duration) (int64, error) {
	if err := f.valid(); err != nil {
		return 0, failed("prune", "", err)
	}
	if db == nil || age < time.Second {
		return 0, failed("prune", "", invalid("no database, or an age of less than a second"))
	}
	res, err := db.ExecContext(ctx, f.prune, int64(math.Ceil(age.Seconds())))
	if err != nil {
		return 0, failed("prune", "", because(ctx, err))
	}
	n, err := res.RowsAffected()
	return n, failed("prune", "", err)
}
