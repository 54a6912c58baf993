package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
)

// queueCommand returns the verb queue and those below it.
func (t *tool) queueCommand() *cobra.Command {
	stats := t.command(verb{
		name: "stats", words: "PATH", short: "print the figures of a queue of any kind",
		long: `
ready, claimed and delayed items, dead letters, the seconds for which the oldest ready item has
been ready, the clients that wait for an item, the nodes that hold items, and those that were not
read. It costs a few requests, however long the queue is. coordctl queue PATH is the same.`,
		example: `coordctl queue stats /queues/mail`,
		do:      t.figures,
	})
	put := t.command(verb{
		name: "put", words: "PATH [VALUE…]", short: "put values into a queue, and print their ids",
		long: `
Without a VALUE, standard input is one value. The values are stored as they are. With --priority
the queue is a PriorityQueue, with --delay a DelayQueue.`,
		example: `
coordctl queue put /queues/mail '{"to":"a@example.com"}'
date | coordctl queue put /queues/mail
coordctl queue put /queues/jobs --priority 5 urgent
coordctl queue put /queues/later --delay 1h "close the books"`,
		exits: []int{exitNo, exitLate},
		do:    t.put,
	})
	put.Flags().Int64Var(&t.priority, "priority", 0, "of an item of a PriorityQueue")
	put.Flags().DurationVar(&t.delay, "delay", 0, "of an item of a DelayQueue, until it is due")
	put.MarkFlagsMutuallyExclusive("priority", "delay")
	t.putFlags = put.Flags()
	take := t.command(verb{
		name: "take", words: "PATH", short: "take one item, write it to standard output, and acknowledge it",
		long: `
The item is acknowledged when it is written. If the write fails, another consumer gets it. With
--wait 0 it does not wait for an item. With --json its id and attempt are written too.`,
		example: `coordctl queue take /queues/mail --wait 0`,
		exits:   []int{exitLate},
		do:      t.take,
	})
	length := t.command(verb{
		name: "len", words: "PATH", short: "count the items",
		example: `coordctl queue len /queues/mail`,
		do:      t.count,
	})
	dead := t.command(verb{
		name: "dead", words: "PATH", short: "list the dead letters, with the reason for each",
		long: `
An item becomes a dead letter if it was taken too often or could not be decoded. Its data is shown
only with --data; the error can quote it.`,
		example: `
coordctl queue dead /queues/mail
coordctl queue dead /queues/mail --data --json`,
		do: t.dead,
	})
	t.dataFlag(dead)
	retries := t.command(verb{
		name: "retries", words: "PATH", short: "list the items that wait for another attempt, the next one first, with the latest error",
		long: `
These are items that their consumer has given back with a delay, until a consumer takes them again.
It lists the whole queue, in one request for some 16 to 64 nodes, and prints up to --limit items.
The error can quote the item.`,
		example: `coordctl queue retries /queues/mail --limit 20`,
		check: func() error {
			if t.limit < 1 {
				return fmt.Errorf("--limit %d: less than 1", t.limit)
			}
			return nil
		},
		do: t.retries,
	})
	retries.Flags().IntVar(&t.limit, "limit", 100, "the `number` of items that are listed at most")
	redrive := t.command(verb{
		name: "redrive", words: "PATH [ID…]", short: "put dead letters back into their queue",
		long: `
With ids it moves these, and without ids, with --all, all of them after a question. The attempts
of an item are counted anew. It prints the number of items that were moved.`,
		example: `coordctl queue redrive /queues/mail --all --yes`,
		exits:   []int{exitNo},
		check: func() error {
			if t.all == (len(t.values) > 0) {
				return errors.New("queue redrive needs ids, or --all")
			}
			return nil
		},
		do: t.redrive,
	})
	redrive.Flags().BoolVar(&t.all, "all", false, "all dead letters")
	remove := t.command(verb{
		name: "remove", words: "PATH ID [ID…]", short: "delete items or dead letters, after a question",
		long: `
It deletes each item wherever it is, in the queue or in the dead letters, unless a consumer has
claimed it.`,
		example: `coordctl queue remove /queues/mail --yes 7f5aa9e9-fb5f-802c-acef-b158bdff5d57`,
		exits:   []int{exitNo},
		do:      t.remove,
	})
	pop := t.command(verb{
		name: "pop", words: "PATH", short: "delete one item, and write it to standard output",
		long: `
If the write fails, the item is lost. Unlike take it needs no claim, so it works while etcd has no space: it saves the
items of a queue that fills the service.`,
		example: `coordctl queue pop /queues/mail --wait 1s`,
		exits:   []int{exitLate},
		no0:     "the deletion takes a moment",
		do:      t.pop,
	})
	purge := t.command(verb{
		name: "purge", words: "PATH", short: "delete all items that are not claimed, after a question",
		long: `
It prints their number. PATH can be that of dead letters (/queues/mail/dead). As the other verbs that only delete, it works
while etcd has no space.`,
		example: `coordctl queue purge /queues/none --yes`,
		exits:   []int{exitNo},
		do:      t.purge,
	})
	for _, c := range []*cobra.Command{dead, redrive, remove, stats} {
		c.Flags().StringVar(&t.deadPath, "dead-letters", "", "the `path` of the dead letters (default PATH/dead)")
	}
	return t.command(verb{
		name: "queue", words: "PATH", short: "use and repair a queue",
		below: []*cobra.Command{stats, put, take, pop, retries, dead, redrive, remove, purge, length},
		do:    t.figures,
	})
}

func (t *tool) queueOptions() *coord.QueueOptions[[]byte] {
	return &coord.QueueOptions[[]byte]{Codec: coord.Bytes(), DeadLetterPath: t.deadPath}
}

func (t *tool) queue(c *coord.Client) *coord.Queue[[]byte] {
	return coord.NewQueue(c, t.path, t.queueOptions())
}

// onQueue calls f with the queue of the kind that the path has.
func (t *tool) onQueue(c *coord.Client, f func(q *coord.Consumer[[]byte]) error) error {
	err := f(&t.queue(c).Consumer)
	var kind *coord.KindError
	if !errors.As(err, &kind) {
		return err
	}
	switch kind.Found {
	case "priorityqueue":
		return f(&coord.NewPriorityQueue(c, t.path, t.queueOptions()).Consumer)
	case "delayqueue":
		return f(&coord.NewDelayQueue(c, t.path, t.queueOptions()).Consumer)
	}
	return err
}

// mostInput bounds how much of a standard input that is too large is counted.
const mostInput = 64 << 20

// input reads standard input as one value.
func (t *tool) input(ctx context.Context, c *coord.Client) ([]byte, error) {
	s, err := c.Session(ctx)
	if err != nil {
		return nil, err
	}
	most := s.Limits().Bytes
	data, err := readAll(ctx, io.LimitReader(t.stdin, int64(most)+1))
	if err != nil || len(data) <= most {
		return data, err
	}
	var more int64
	err = blocking(ctx, func() (err error) {
		more, err = io.Copy(io.Discard, io.LimitReader(t.stdin, mostInput))
		return err
	})
	if err != nil {
		return nil, err
	}
	size := fmt.Sprintf("%d bytes", int64(len(data))+more)
	if more == mostInput {
		size = fmt.Sprintf("more than %d bytes", mostInput)
	}
	return nil, fmt.Errorf("standard input is %s: %w: the service takes at most %d", size, coord.ErrTooLarge, most)
}

// put puts the values, or standard input as one value.
func (t *tool) put(ctx context.Context, c *coord.Client) error {
	var values [][]byte
	for _, v := range t.values {
		values = append(values, []byte(v))
	}
	if len(values) == 0 {
		data, err := t.input(ctx, c)
		if err != nil {
			return err
		}
		values = append(values, data)
	}
	var ids []string
	var err error
	switch {
	case t.putFlags.Changed("priority"):
		ids, err = coord.NewPriorityQueue(c, t.path, t.queueOptions()).PutAll(ctx, t.priority, values...)
	case t.putFlags.Changed("delay"):
		q := coord.NewDelayQueue(c, t.path, t.queueOptions())
		for _, v := range values {
			var id string
			if id, err = q.PutAfter(ctx, t.delay, v); err != nil {
				break
			}
			ids = append(ids, id)
		}
	default:
		ids, err = t.queue(c).PutAll(ctx, values...)
	}
	if err != nil && len(ids) == 0 {
		return answered(err)
	}
	return answered(t.done(ctx, map[string][]string{"ids": ids}, strings.Join(ids, "\n")+"\n", "", err))
}

// taken is an item as JSON.
type taken struct {
	ID      string `json:"id"`
	Attempt int    `json:"attempt"`
	content
}

// take takes one item. It acknowledges the item only after writing it: if the write fails,
// another consumer gets the item.
func (t *tool) take(ctx context.Context, c *coord.Client) error {
	defer t.progress("waiting for an item of %s", t.path)()
	return t.onQueue(c, func(q *coord.Consumer[[]byte]) error {
		take := q.Take
		if t.wait == 0 {
			take = q.TryTake
		}
		item, err := take(ctx)
		if err != nil {
			return err
		}
		defer item.Release()
		if err := t.print(ctx, taken{item.ID, item.Attempt, contentOf(item.Value)}, string(item.Value)); err != nil {
			return err
		}
		return item.Ack()
	})
}

// pop deletes one item, and writes it.
func (t *tool) pop(ctx context.Context, c *coord.Client) error {
	defer t.progress("waiting for an item of %s", t.path)()
	return t.onQueue(c, func(q *coord.Consumer[[]byte]) error {
		value, err := q.Pop(ctx)
		if err != nil {
			return err
		}
		return t.done(ctx, contentOf(value), string(value), "", nil)
	})
}

// count prints the number of items.
func (t *tool) count(ctx context.Context, c *coord.Client) error {
	n, err := t.queue(c).Len(ctx)
	if err != nil {
		return err
	}
	return t.print(ctx, map[string]int{"items": n}, strconv.Itoa(n)+"\n")
}

// deadLetter is a coord.DeadLetter as JSON.
type deadLetter struct {
	ID       string    `json:"id"`
	Reason   string    `json:"reason,omitempty"`
	Error    string    `json:"error,omitempty"`
	Attempts int       `json:"attempts,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Session  string    `json:"session,omitempty"` // of the last consumer
	Queue    string    `json:"queue,omitempty"`
	Priority int64     `json:"priority,omitempty"`
	Claimed  bool      `json:"claimed,omitempty"`
	Size     int       `json:"size"`
	*content
}

// dead lists the dead letters.
func (t *tool) dead(ctx context.Context, c *coord.Client) error {
	letters := []deadLetter{}
	err := t.onQueue(c, func(q *coord.Consumer[[]byte]) error {
		letters = letters[:0]
		for l, err := range q.Dead(ctx) {
			if err != nil {
				return err
			}
			d := deadLetter{
				ID: l.ID, Reason: string(l.Reason), Error: l.Error, Attempts: l.Attempts, Since: l.Since.UTC(), Session: hexSession(l.Session),
				Queue: l.Queue, Priority: l.Priority, Claimed: l.Claimed, Size: len(l.Data),
			}
			if t.data {
				data := contentOf(l.Data)
				d.content = &data
			}
			letters = append(letters, d)
		}
		return nil
	})
	if err != nil {
		return err
	}
	rows := [][]string{{"id", "reason", "attempts", "since", "last session", "bytes", "error"}}
	if t.data {
		rows[0] = append(rows[0], "data")
	}
	for _, l := range letters {
		reason := l.Reason
		if reason == "" {
			reason = "unknown"
		}
		if l.Claimed {
			reason += " (claimed)"
		}
		row := []string{printable(l.ID), reason, strconv.Itoa(l.Attempts), stamp(l.Since), dash(l.Session), strconv.Itoa(l.Size), "-"}
		if l.Error != "" {
			row[6] = strconv.Quote(l.Error)
		}
		if t.data {
			row = append(row, l.content.String())
		}
		rows = append(rows, row)
	}
	if len(letters) == 0 && !t.json {
		t.say("no dead letters of %s", t.path)
	}
	return t.report(ctx, letters, table(rows))
}

// retry is a coord.Retry as JSON.
type retry struct {
	ID       string    `json:"id"`
	Attempts int       `json:"attempts"`
	Next     time.Time `json:"next"`
	Error    string    `json:"error,omitempty"`
}

// retries lists the items that wait for another attempt.
func (t *tool) retries(ctx context.Context, c *coord.Client) error {
	list, more := []retry{}, false
	err := t.onQueue(c, func(q *coord.Consumer[[]byte]) error {
		list = list[:0]
		for r, err := range q.Retries(ctx) {
			if err != nil {
				return err
			}
			if more = len(list) == t.limit; more {
				return nil
			}
			list = append(list, retry{r.ID, r.Attempts, r.Next.UTC(), r.Error})
		}
		return nil
	})
	if err != nil {
		return err
	}
	rows := [][]string{{"id", "attempts", "next", "error"}}
	for _, r := range list {
		row := []string{printable(r.ID), strconv.Itoa(r.Attempts), stamp(r.Next), "-"}
		if r.Error != "" {
			row[3] = strconv.Quote(r.Error)
		}
		rows = append(rows, row)
	}
	switch {
	case more:
		t.say("these are the next %d; more items of %s wait for another attempt", len(list), t.path)
	case len(list) == 0 && !t.json:
		t.say("no item of %s waits for another attempt", t.path)
	}
	return t.report(ctx, list, table(rows))
}

// redrive puts dead letters back.
func (t *tool) redrive(ctx context.Context, c *coord.Client) error {
	if t.all {
		if err := t.confirm(ctx, "put all dead letters of %s back into it", t.path); err != nil {
			return err
		}
	}
	defer t.progress("moving dead letters of %s", t.path)()
	n := 0
	err := t.onQueue(c, func(q *coord.Consumer[[]byte]) (err error) {
		n, err = q.Redrive(ctx, t.values...)
		return err
	})
	return answered(t.done(ctx, map[string]int{"moved": n}, strconv.Itoa(n)+"\n", "", err))
}

// remove deletes items.
func (t *tool) remove(ctx context.Context, c *coord.Client) error {
	if err := t.confirm(ctx, "delete %s from %s", strings.Join(t.values, ", "), t.path); err != nil {
		return err
	}
	removed := []string{}
	var all error
	for _, id := range t.values {
		err := t.onQueue(c, func(q *coord.Consumer[[]byte]) error { return q.Remove(ctx, id) })
		if err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", printable(id), err))
			continue
		}
		removed = append(removed, id)
	}
	text := strings.Join(removed, "\n")
	if text != "" {
		text += "\n"
	}
	return answered(t.done(ctx, map[string][]string{"removed": removed}, text, "", all))
}

// purge deletes the items that are not claimed.
func (t *tool) purge(ctx context.Context, c *coord.Client) error {
	if err := t.confirm(ctx, "delete all items of %s", t.path); err != nil {
		return err
	}
	defer t.progress("deleting the items of %s", t.path)()
	n := 0
	err := t.onQueue(c, func(q *coord.Consumer[[]byte]) (err error) {
		n, err = q.Purge(ctx)
		return err
	})
	return answered(t.done(ctx, map[string]int{"removed": n}, strconv.Itoa(n)+"\n", "", err))
}

// figures is coord.QueueStats as JSON and as text.
type figures struct {
	Ready   int     `json:"ready"`
	Claimed int     `json:"claimed"`
	Delayed int     `json:"delayed"`
	Dead    int     `json:"dead"`
	Oldest  float64 `json:"oldest_seconds"`
	Waiting int     `json:"waiting"`
	Buckets int     `json:"buckets"`
	Unread  int     `json:"unread"`
}

// figures prints the figures of the queue.
func (t *tool) figures(ctx context.Context, c *coord.Client) error {
	st, err := t.queue(c).Stats(ctx)
	if err != nil {
		return err
	}
	f := figures{st.Ready, st.Claimed, st.Delayed, st.Dead, st.Oldest.Seconds(), st.Waiting, st.Buckets, st.Unread}
	switch {
	case f.Buckets == 0:
		t.say("nothing was ever put into a queue at %s", t.path)
	case f.Unread > 0:
		t.say("%d nodes with items were not read, so the figures are lower bounds", f.Unread)
	}
	return t.print(ctx, f, fmt.Sprintf("ready %d\nclaimed %d\ndelayed %d\ndead %d\noldest %.3f\nwaiting %d\nbuckets %d\nunread %d\n",
		f.Ready, f.Claimed, f.Delayed, f.Dead, f.Oldest, f.Waiting, f.Buckets, f.Unread))
}
