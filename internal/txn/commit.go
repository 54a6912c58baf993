package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/carry"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
)

// mostOvertaken bounds the attempts of a transaction whose recipe operations are
// refused each time. Then the cause is not another client but the transaction itself,
// such as one that deletes a node on which an operation relies.
const mostOvertaken = 30

// A Result is the result of one operation: see TxnResult of package coord.
type Result struct {
	Path    string
	Zxid    int64
	Version int32
}

// Commit applies the transaction, exactly once or not at all, and returns a result
// for each operation. The results can come with an error: the transaction is applied, and the
// examination of a node has failed.
//
// If ctx has a Stage (package carry), Commit gives it the requests instead of sending them. Then it neither
// tries a refused transaction again nor examines nodes, and the results have no zxid.
func (t *Txn) Commit(ctx context.Context) ([]Result, error) {
	if t.err != nil {
		return nil, t.err
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, errs.Op("commit", "", err)
	}
	for i, g := range t.guards {
		if err := g.Enter(); err != nil {
			for _, g := range t.guards[:i] {
				g.Leave(nil)
			}
			return nil, t.conflict(ctx, &part{name: "guard", index: i}, err)
		}
	}
	for _, op := range t.ops {
		if op.Begin != nil {
			op.Begin()
		}
	}
	a := t.commit(ctx)
	for _, op := range t.ops {
		if op.Ended != nil {
			op.Ended(a.outcome)
		}
	}
	for _, g := range t.guards {
		if a.outcome == Unknown {
			g.Leave(backend.Uncertain(a.err)) // the commit can be applied at any time
		} else {
			g.Leave(nil)
		}
	}
	switch {
	case a.refused != nil:
		return nil, t.conflict(ctx, a.refused, a.err)
	case a.err != nil:
		return nil, a.err
	case a.outcome == Applied:
		return a.results(ctx), a.examine(ctx)
	}
	return a.results(ctx), nil // carried
}

// attempt is the last attempt of a Commit.
type attempt struct {
	*plan // nil if there is none
	s     *core.Session

	outcome Outcome
	replies []backend.Result // nil if the reply was lost, or the transaction is carried
	zxid    int64            // 0 if the transaction is not known to be applied
	err     error
	refused *part // the part because of which the transaction is refused with err
}

// commit is Commit while the guards are entered.
func (t *Txn) commit(ctx context.Context) attempt {
	stage := carry.Of(ctx)
	failed := func(err error) attempt { return attempt{err: err} }
	pause := core.NewPauses(t.c)
	for {
		s, err := t.c.Live(ctx)
		if err != nil {
			return failed(errs.Op("commit", "", err))
		}
		p, err := t.plan(ctx, s)
		a := attempt{plan: p, s: s}
		switch {
		case err != nil && p != nil && p.refused != nil:
			a.refused, a.err = p.refused, err
			return a
		case err == nil && stage != nil:
			return a.carry(ctx, stage)
		case err == nil:
			a.replies, a.zxid, err = s.CommitOnce(ctx, p.ops...)
		case backend.IsUncertain(err):
			// Only a directory, or a bucket, is uncertain: the transaction itself was
			// not sent.
			if err = cmp.Or(backend.ContextError(ctx), s.Backend().Err()); err == nil {
				pause.Wait(ctx.Done(), s.Backend().Done())
				continue
			}
		}
		if err == nil {
			a.outcome = Applied
			return a
		}
		blamed := p.blame(err)
		switch {
		case backend.IsUncertain(err):
			return attempt{outcome: Unknown, err: err}
		case errors.Is(err, backend.ErrSessionLost) && ctx.Err() == nil:
			continue // the transaction was not sent, or was refused: the next session can commit it
		case blamed == nil:
			if errs.Named(err) != nil {
				return failed(err) // err names the operation and the path
			}
			return failed(errs.Op("commit", "", err))
		case blamed.again(err) && ctx.Err() == nil && pause.Count() < mostOvertaken:
			// The next read must not be behind the state for which the service
			// refused.
			if err := s.Backend().Sync(ctx, blamed.path); err != nil && !errs.IsOver(err) {
				return failed(errs.Op("commit", blamed.path, err))
			}
			pause.Wait(ctx.Done(), s.Backend().Done())
			continue
		}
		a.refused, a.err = blamed, err
		return a
	}
}

// carry gives the requests to stage.
func (a attempt) carry(ctx context.Context, stage carry.Stage) attempt {
	for _, op := range a.ops {
		if op.Kind == backend.OpCreate && op.Mode.Ephemeral() {
			// The session can end before the transaction that carries the requests commits.
			a.err = errs.Op("create", op.Path, fmt.Errorf("%w: another transaction cannot carry the creation of an ephemeral node", backend.ErrUnsupported))
			return a
		}
	}
	a.outcome = Unknown
	var parts []carry.Part
	for _, x := range a.parts {
		for _, op := range a.ops[x.first : x.first+x.n] {
			parts = append(parts, carry.Part{Op: x.name, Index: x.index, Path: x.path, Claim: x.op != nil && x.op.Claim == op.Path})
		}
	}
	if err := stage(ctx, a.s.Backend(), slices.Clone(a.ops), parts); err != nil {
		a.err = errs.Op("commit", "", err)
	}
	return a
}

// conflict returns the error of a transaction that was refused with err because of p.
func (t *Txn) conflict(ctx context.Context, p *part, err error) error {
	if p.op != nil && p.op.Refused != nil {
		err = p.op.Refused(ctx, err)
	}
	path := p.path
	if path == "" { // of a guard
		var e *backend.Error
		errors.As(err, &e)
		path = e.Path
	}
	return t.refusal(p.name, p.index, path, err)
}

// results returns the results of the operations.
func (a *attempt) results(ctx context.Context) []Result {
	var list []Result
	p, replies := a.plan, a.replies
	for _, x := range p.parts {
		if x.op == nil {
			continue
		}
		r := Result{Path: x.path, Zxid: a.zxid, Version: -1}
		if x.n > 0 {
			op := p.ops[x.product]
			r.Path = op.Path
			switch {
			case op.Kind == backend.OpCreate:
				r.Version = 0
				if replies != nil {
					r.Path = replies[x.product].Path
				} else if op.Mode.Sequential() {
					r.Path = ""
				}
			case op.Kind == backend.OpSetData && replies != nil:
				r.Version = replies[x.product].Stat.Version
			case op.Kind == backend.OpSetData && a.outcome == Applied:
				r.Version = p.version(ctx, a.s, x.product, a.zxid)
			}
		}
		list = append(list, r)
	}
	return list
}

// version finds out which version request i made. It returns -1 if that cannot be
// seen any more.
func (p *plan) version(ctx context.Context, s *core.Session, i int, zxid int64) int32 {
	later := int32(0)
	for _, op := range p.ops[i+1:] {
		switch {
		case op.Path != p.ops[i].Path:
		case op.Kind == backend.OpDelete:
			return -1 // a node that is there now has versions of its own
		case op.Kind == backend.OpSetData:
			later++
		}
	}
	stat, err := s.Backend().Exists(ctx, p.ops[i].Path, nil)
	if err != nil || stat.Mzxid != zxid {
		return -1
	}
	return stat.Version - later
}

// examine examines the nodes that the transaction has set.
func (a *attempt) examine(ctx context.Context) error {
	var failed []error
	p, s := a.plan, a.s
	for _, x := range p.parts {
		op := x.op
		if op == nil || op.Examine == nil || x.n == 0 || p.ops[x.product].Kind != backend.OpSetData {
			continue
		}
		var stat backend.Stat
		if a.replies != nil {
			stat = a.replies[x.product].Stat
		} else {
			var err error
			if stat, err = s.Backend().Exists(ctx, op.Path, nil); err != nil {
				stat = backend.Stat{}
			}
		}
		failed = append(failed, errs.Op(op.Name, op.Path, op.Examine(ctx, s, p.ops, stat, a.zxid)))
	}
	return errors.Join(failed...)
}
