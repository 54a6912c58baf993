//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord"
)

// voteOf returns the vote of a site on a transaction: one in twelve is no.
func voteOf(id, site string) bool {
	h := uint32(2166136261)
	for _, c := range []byte(id + "/" + site) {
		h = (h ^ uint32(c)) * 16777619
	}
	return h>>8%12 != 0
}

// txnDeadline is the time for the votes.
const txnDeadline = 5 * time.Second

var sites = []string{"north", "south", "west"}

func (x *client) proposer(ctx context.Context, w *worker) {
	co := coord.NewCoordinator(x.c, txnPath, &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
	for _, s := range sites {
		for ctx.Err() == nil && !x.served(ctx, s) {
			w.pause(ctx, 20*time.Millisecond)
		}
	}
	n := 0
	w.loop(ctx, 400*time.Millisecond, func(ctx context.Context) bool {
		n++
		id := fmt.Sprintf("%s-%d", x.spec.Name, n)
		among := slices.Clone(sites)
		w.rand.Shuffle(len(among), func(i, j int) { among[i], among[j] = among[j], among[i] })
		among = among[:2+w.rand.IntN(2)]
		p := coord.Proposal[string]{ID: id, Sites: among, Payload: "payload of " + id, Deadline: time.Now().Add(txnDeadline)}
		e := event{Work: "txn", Op: "propose", ID: id, Old: strings.Join(among, " ")}
		for ctx.Err() == nil {
			kind, err := w.one(ctx, e, limit, func(ctx context.Context, e *event) error {
				d, err := co.Propose(ctx, p)
				if err == nil {
					e.Value, e.Token = decided(d.Commit), d.Zxid
				}
				return err
			})
			if !errors.Is(err, coord.ErrUncertain) { // as documented at Propose
				return kind == "ok"
			}
		}
		return false
	})
}

// served reports whether a site was ever served: Propose refuses a site that never was.
func (x *client) served(ctx context.Context, site string) bool {
	s, err := x.c.Session(ctx)
	if err == nil {
		_, err = s.Exists(ctx, txnPath+"/sites/"+site, nil)
	}
	return err == nil
}

func decided(commit bool) string {
	if commit {
		return "commit"
	}
	return "abort"
}

// site serves the client's site.
func (x *client) site(ctx context.Context) {
	called := func(op string, tx coord.Branch[string]) error {
		e := event{Kind: "told", Work: "txn", Op: op, ID: tx.ID, Value: tx.Site, Token: tx.Zxid}
		if !tx.NoPayload && tx.Payload != "payload of "+tx.ID || tx.NoPayload && op != "abort" || tx.Site != x.spec.Site {
			e.Odd, e.Err = true, fmt.Sprintf("called back with %+v", tx)
		}
		x.rec.say(e)
		return nil
	}
	err := coord.NewParticipant(x.c, txnPath, x.spec.Site, coord.Handler[string]{
		Prepare: func(_ context.Context, tx coord.Branch[string]) error {
			if err := called("prepare", tx); err != nil || voteOf(tx.ID, tx.Site) {
				return err
			}
			return errors.New("not here")
		},
		Commit: func(_ context.Context, tx coord.Branch[string]) error { return called("commit", tx) },
		Abort:  func(_ context.Context, tx coord.Branch[string]) error { return called("abort", tx) },
	}).Serve(ctx)
	if ctx.Err() == nil {
		x.report(report{Kind: "failed", Text: fmt.Sprintf("a site is not served any more: %v", err)})
	}
}

// recover finishes the transactions during which this client's predecessor was killed. It
// also treats a proposer as dead that has just lost its session; then Propose ends in doubt.
func (x *client) recover(ctx context.Context) {
	e := x.rec.begin(event{Work: "recovery", Op: "recover"})
	list, err := coord.NewCoordinator[string](x.c, txnPath, nil).Recover(ctx)
	for _, d := range list {
		x.rec.say(event{Kind: "told", Work: "txn", Op: "recover", ID: d.ID, Value: decided(d.Commit), Token: d.Zxid})
	}
	kind := "ok"
	if err != nil {
		kind = "unknown"
		e.Odd = !expected(event{Work: "txn"}, err)
	}
	x.rec.end(e, kind, err)
}
