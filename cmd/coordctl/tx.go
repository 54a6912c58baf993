package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/inspect"
)

// txCommand returns the verb tx and those below it.
func (t *tool) txCommand() *cobra.Command {
	list := t.command(verb{
		name: "list", words: "PATH", short: "list the transactions of a two-phase commit",
		long: `
PATH is that of the Coordinators. With --doubt only those are listed that a site has voted for and
that are not decided, or whose decision an outsider has destroyed. If a part of the state could not
be read, it says so, and the exit status is 125. It is 1 if PATH is another recipe's.`,
		example: `
coordctl tx list /tx/orders
coordctl tx list /tx/orders --doubt`,
		exits: []int{exitNo},
		do:    t.listTx,
	})
	list.Flags().BoolVar(&t.doubt, "doubt", false, "only those in doubt")
	status := t.command(verb{
		name: "status", words: "PATH ID", short: "show one transaction: its state, deadline, decision and votes",
		long: `
If there is no record of it, the exit status is 1: it was never proposed, or it is finished, or an
outsider has destroyed the record before a site has voted yes. One whose record was destroyed after
that is in doubt. If it can be among what could not be read, the exit status is 125.`,
		example: `coordctl tx status /tx/orders order-4711`,
		exits:   []int{exitNo},
		do:      t.txStatus,
	})
	recoverTx := t.command(verb{
		name: "recover", words: "PATH", short: "finish the transactions of dead proposers, after a question",
		long: `
It aborts those that are undecided, prints the decisions that are still owed to a proposer, and
removes their records: a program that wants to ask for such a decision later cannot. It waits for
proposers that are alive, or that the service does not know to be dead yet, until their deadlines;
the question counts their transactions too. Transactions in doubt are left as they are.`,
		example: `coordctl tx recover /tx/orders --yes`,
		exits:   []int{exitNo, exitLate},
		no0:     "recovery takes a moment",
		do:      t.recoverTx,
	})
	return t.command(verb{name: "tx", short: "see and recover transactions of a two-phase commit", below: []*cobra.Command{list, status, recoverTx}})
}

// transaction is an inspect.Transaction as JSON.
type transaction struct {
	inspect.Transaction
	Destroyed bool `json:"destroyed,omitempty"` // an outsider has destroyed the record: only ID, State, InDoubt and Votes are known
}

var errUnread = errors.New("not all of the state could be read")

// transactions returns the transactions at the path. Those whose records were destroyed come last. whole is false
// if a part of the state could not be read.
func (t *tool) transactions(ctx context.Context, c *coord.Client) (all []transaction, whole bool, err error) {
	in, err := inspect.Path(ctx, c, t.path, &inspect.Options{MaxReads: 100_000})
	if err != nil {
		return nil, false, err
	}
	whole = !in.Truncated
	if in.Truncated {
		t.say("note: the limit of reads was reached, so the list is incomplete")
	}
	for _, note := range in.Notes {
		t.say("note: %s", note)
		whole = whole && !strings.HasPrefix(note, "no permission")
	}
	switch {
	case in.TwoPhase == nil && in.Recipe != "missing" && in.Recipe != "empty":
		return nil, false, &exit{exitNo, fmt.Errorf("%s is not a two-phase commit; found %s: %s", t.path, in.Recipe, in.Summary)}
	case in.TwoPhase == nil:
		return nil, whole, nil
	}
	for _, tx := range in.TwoPhase.Transactions {
		all = append(all, transaction{Transaction: tx})
	}
	lost := make(map[string]int) // the index in all, by the names of branches
	for _, site := range in.TwoPhase.Sites {
		for _, b := range site.Branches {
			if b.State != "in doubt" {
				continue
			}
			i, ok := lost[b.Name]
			if !ok {
				i = len(all)
				lost[b.Name] = i
				all = append(all, transaction{inspect.Transaction{ID: b.ID, State: b.State, InDoubt: b.VotedAt}, true})
			}
			tx := &all[i]
			tx.Votes = append(tx.Votes, inspect.Vote{Site: site.Site, Vote: b.Vote, Since: b.VotedAt, Served: site.Served})
			if b.VotedAt.Before(tx.InDoubt) {
				tx.InDoubt = b.VotedAt
			}
		}
	}
	return all, whole, nil
}

func (t *tool) listTx(ctx context.Context, c *coord.Client) error {
	all, whole, err := t.transactions(ctx, c)
	if err != nil {
		return err
	}
	shown := []transaction{}
	rows := [][]string{{"id", "state", "since", "deadline", "in doubt since", "proposer", "votes"}}
	for _, tx := range all {
		if t.doubt && tx.State != "in doubt" && tx.InDoubt.IsZero() {
			continue
		}
		shown = append(shown, tx)
		rows = append(rows, []string{printable(tx.ID), t.state(&tx), stamp(tx.Since), stamp(tx.Deadline), stamp(tx.InDoubt), proposer(&tx), votes(&tx)})
	}
	if len(shown) == 0 && whole && !t.json {
		t.say("no transactions")
	}
	if err := t.report(ctx, shown, table(rows)); err != nil {
		return err
	}
	if !whole {
		return fmt.Errorf("%s: %w", t.path, errUnread)
	}
	return nil
}

// state returns the state of a transaction, with what an operator must know of it.
func (t *tool) state(tx *transaction) string {
	switch {
	case tx.Destroyed:
		return tx.State + " (record destroyed)"
	case tx.Overdue:
		return tx.State + " (overdue)"
	}
	return tx.State
}

func proposer(tx *transaction) string {
	switch {
	case tx.Destroyed:
		return "unknown"
	case tx.Proposed:
		return "waits"
	case tx.Told:
		return "told"
	}
	return "gone"
}

func votes(tx *transaction) string {
	var list []string
	for _, v := range tx.Votes {
		text := printable(v.Site) + ":" + dash(v.Vote)
		if !v.Served {
			text += "(not served)"
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

func (t *tool) txStatus(ctx context.Context, c *coord.Client) error {
	all, whole, err := t.transactions(ctx, c)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(tx transaction) bool { return tx.ID != t.values[0] })
	switch {
	case len(all) == 0 && !whole:
		return fmt.Errorf("%s: %w", t.path, errUnread)
	case len(all) == 0:
		return &exit{exitNo, fmt.Errorf("%s: no record of transaction %s", t.path, printable(t.values[0]))}
	case len(all) > 1:
		t.say("the id was used again: tx list --doubt shows an earlier transaction, which is in doubt")
	}
	tx := all[0]
	text := fmt.Sprintf("%s: %s\nsince     %s\ndeadline  %s\nproposer  %s\n", printable(tx.ID), t.state(&tx), stamp(tx.Since), stamp(tx.Deadline), proposer(&tx))
	if tx.By != "" {
		text += fmt.Sprintf("decided   by %s\n", printable(tx.By))
	}
	if tx.Reason != "" {
		text += fmt.Sprintf("reason    %q\n", tx.Reason)
	}
	if !tx.InDoubt.IsZero() {
		text += fmt.Sprintf("in doubt  at a site since %s\n", stamp(tx.InDoubt))
	}
	rows := [][]string{{"site", "vote", "since", "acknowledged", "served"}}
	for _, v := range tx.Votes {
		rows = append(rows, []string{printable(v.Site), dash(v.Vote), stamp(v.Since), yesNo(v.Acknowledged), yesNo(v.Served)})
	}
	return t.report(ctx, tx, text+"\n"+table(rows))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// decision is a coord.Decision as JSON.
type decision struct {
	ID     string `json:"id"`
	Commit bool   `json:"commit"`
	By     string `json:"by"`
	Reason string `json:"reason,omitempty"`
}

func (t *tool) recoverTx(ctx context.Context, c *coord.Client) error {
	all, _, err := t.transactions(ctx, c)
	if err != nil {
		return err
	}
	open, owed, alive := 0, 0, 0
	for _, tx := range all {
		switch {
		case tx.State == "in doubt":
		case tx.Proposed && !tx.Told:
			alive++ // or the service does not know yet that its proposer is dead
		case tx.State == "open" || tx.State == "prepared":
			open++
		case !tx.Told:
			owed++
		}
	}
	if open+owed+alive > 0 {
		what := fmt.Sprintf("abort %s of dead proposers, and take over %s", plural(open, "undecided transaction"), plural(owed, "decision"))
		if alive > 0 {
			what += fmt.Sprintf(", and do so with %s if the proposers die meanwhile", plural(alive, "transaction"))
		}
		if err := t.confirm(ctx, "%s", what); err != nil {
			return err
		}
	}
	defer t.progress("recovering %s", t.path)()
	co := coord.NewCoordinator(c, t.path, &coord.CoordinatorOptions[[]byte]{Codec: coord.Bytes()})
	decisions, err := co.Recover(ctx)
	done := []decision{}
	rows := [][]string{{"id", "decision", "by", "reason"}}
	for _, d := range decisions {
		done = append(done, decision{d.ID, d.Commit, d.By, d.Reason})
		word := "abort"
		if d.Commit {
			word = "commit"
		}
		rows = append(rows, []string{printable(d.ID), word, printable(d.By), dash(d.Reason)})
	}
	if err == nil && len(done) == 0 && !t.json {
		t.say("nothing to recover")
	}
	return t.done(ctx, done, table(rows), "  ", err)
}
