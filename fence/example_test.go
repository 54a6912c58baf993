package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/fence"
)

// openExample opens a database of SQLite, and a client of a service in memory.
func openExample() (db *sql.DB, c *coord.Client, done func()) {
	dir, err := os.MkdirTemp("", "fence-example-")
	if err != nil {
		log.Fatal(err)
	}
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE report (body text)"); err != nil {
		log.Fatal(err)
	}
	c, err = coord.Open(context.Background(), memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	return db, c, func() {
		c.Close()
		db.Close()
		os.RemoveAll(dir)
	}
}

func Example() {
	ctx := context.Background()
	db, c, done := openExample()
	defer done()

	f := fence.New(fence.SQLite, nil)
	if err := f.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	write := func(ctx context.Context, token fence.Token, body string) error {
		return f.Tx(ctx, db, token, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO report VALUES (?)", body)
			return err
		})
	}

	m := coord.NewMutex(c, "/locks/report", nil)
	var paused string // the token in a process that is paused, and does not know that its hold has ended
	for _, body := range []string{"first", "second"} {
		err := m.Do(ctx, func(ctx context.Context, h *coord.Hold) error {
			if paused == "" {
				paused = fence.Of(h).String()
			}
			return write(ctx, fence.Of(h), body)
		})
		fmt.Println(body, err)
	}
	late, err := fence.ParseToken(paused)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("late, fenced:", errors.Is(write(ctx, late, "late"), coord.ErrFenced))
	// Output:
	// first <nil>
	// second <nil>
	// late, fenced: true
}

func ExampleFence_Schema() {
	schema, err := fence.New(fence.PostgreSQL, nil).Schema()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(schema)
	// Output:
	// CREATE TABLE IF NOT EXISTS "coord_fence" (path text COLLATE "C" NOT NULL PRIMARY KEY, token bigint NOT NULL);
	// CREATE TABLE IF NOT EXISTS "coord_item" (id text COLLATE "C" NOT NULL PRIMARY KEY, seen bigint NOT NULL);
	// CREATE INDEX IF NOT EXISTS "coord_item_seen" ON "coord_item" (seen);
}

// An item is delivered again if its consumer dies after the transaction and before the Ack. Its effect is in the database once.
func ExampleFence_Once() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	db, c, done := openExample()
	defer done()
	f := fence.New(fence.SQLite, nil)
	if err := f.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}

	q := coord.NewQueue(c, "/reports", &coord.QueueOptions[string]{MaxAttempts: 5})
	if _, err := q.Put(ctx, "sales"); err != nil {
		log.Fatal(err)
	}
	err := q.Work(ctx, 1, func(ctx context.Context, item *coord.Item[string]) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		first, err := f.Once(ctx, tx, item.ID)
		if err != nil {
			return err
		}
		fmt.Println("attempt", item.Attempt, "first:", first)
		if !first {
			cancel() // the end of the example
			return nil
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO report VALUES (?)", item.Value); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		return errors.New("the consumer fails before the Ack")
	})
	if err != nil {
		log.Fatal(err)
	}
	var n int
	if err := db.QueryRow("SELECT count(*) FROM report").Scan(&n); err != nil {
		log.Fatal(err)
	}
	fmt.Println("reports:", n)
	// Output:
	// attempt 1 first: true
	// attempt 2 first: false
	// reports: 1
}

func ExampleHandler() {
	var (
		db *sql.DB
		f  = fence.New(fence.PostgreSQL, nil)
	)
	lock := func(r *http.Request) string { return "/locks/report" }
	http.Handle("PUT /report", fence.Handler(lock, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := fence.FromContext(r.Context())
		err := f.Tx(r.Context(), db, token, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE report SET body = $1", r.FormValue("body"))
			return err
		})
		switch {
		case errors.Is(err, coord.ErrFenced):
			http.Error(w, "a later holder has written", http.StatusPreconditionFailed)
		case err != nil:
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	})))

	// The client sends the token of its hold.
	client := &http.Client{Transport: new(fence.Transport)}
	put := func(ctx context.Context, h *coord.Hold, url string) (*http.Response, error) {
		ctx = fence.NewContext(h.Context(ctx), fence.Of(h))
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, url, nil)
		if err != nil {
			return nil, err
		}
		return client.Do(r)
	}
	_ = put
}
