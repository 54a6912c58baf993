package txn

import (
	"cmp"
	"context"
	"errors"

	"github.com/go-coord/coord/backend"
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
			return nil, t.conflict(&part{name: "guard", index: i}, err)
		}
	}
	results, err := t.commit(ctx)
	for _, g := range t.guards {
		g.Leave(err)
	}
	return results, err
}

// commit is Commit while the guards are entered.
func (t *Txn) commit(ctx context.Context) ([]Result, error) {
	pause := core.NewPauses(t.c)
	for {
		s, err := t.c.Live(ctx)
		if err != nil {
			return nil, errs.Op("commit", "", err)
		}
		var p *plan
		replies, zxid := []backend.Result(nil), int64(0)
		if p, err = t.plan(ctx, s); err == nil {
			replies, zxid, err = s.CommitOnce(ctx, p.ops...)
			if err == nil || backend.IsUncertain(err) {
				t.applied()
			}
		} else if backend.IsUncertain(err) {
			// Only a directory, or a bucket, is uncertain: the transaction itself was
			// not sent.
			if err = cmp.Or(backend.ContextError(ctx), s.Backend().Err()); err == nil {
				pause.Wait(ctx.Done(), s.Backend().Done())
				continue
			}
		}
		if err == nil {
			return p.results(ctx, s, replies, zxid), p.examine(ctx, s, replies, zxid)
		}
		blamed := p.blame(err)
		switch {
		case backend.IsUncertain(err):
			return nil, err
		case errors.Is(err, backend.ErrSessionLost) && ctx.Err() == nil:
			continue // the transaction was not sent, or was refused: the next session can commit it
		case blamed == nil:
			if errs.Named(err) != nil {
				return nil, err // err names the operation and the path
			}
			return nil, errs.Op("commit", "", err)
		case blamed.again(err) && ctx.Err() == nil && pause.Count() < mostOvertaken:
			// The next read must not be behind the state for which the service
			// refused.
			if err := s.Backend().Sync(ctx, blamed.path); err != nil && !errs.IsOver(err) {
				return nil, errs.Op("commit", blamed.path, err)
			}
			pause.Wait(ctx.Done(), s.Backend().Done())
			continue
		}
		return nil, t.conflict(blamed, err)
	}
}

// applied tells the recipes that the transaction is applied, or may be.
func (t *Txn) applied() {
	for _, op := range t.ops {
		if op.Applied != nil {
			op.Applied()
		}
	}
}

// conflict returns the error of a transaction that was refused with err because of p.
func (t *Txn) conflict(p *part, err error) error {
	path := p.path
	if path == "" { // of a guard
		var e *backend.Error
		errors.As(err, &e)
		path = e.Path
	}
	return t.refusal(p.name, p.index, path, err)
}

// results returns the results of the operations. replies is nil if the reply was lost.
func (p *plan) results(ctx context.Context, s *core.Session, replies []backend.Result, zxid int64) []Result {
	var list []Result
	for _, x := range p.parts {
		if x.op == nil {
			continue
		}
		r := Result{Path: x.path, Zxid: zxid, Version: -1}
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
			case op.Kind == backend.OpSetData:
				r.Version = p.version(ctx, s, x.product, zxid)
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

// examine examines the nodes that the transaction has set. replies is nil if the reply was lost.
func (p *plan) examine(ctx context.Context, s *core.Session, replies []backend.Result, zxid int64) error {
	var failed []error
	for _, x := range p.parts {
		op := x.op
		if op == nil || op.Examine == nil || x.n == 0 || p.ops[x.product].Kind != backend.OpSetData {
			continue
		}
		var stat backend.Stat
		if replies != nil {
			stat = replies[x.product].Stat
		} else {
			var err error
			if stat, err = s.Backend().Exists(ctx, op.Path, nil); err != nil {
				stat = backend.Stat{}
			}
		}
		failed = append(failed, errs.Op(op.Name, op.Path, op.Examine(ctx, s, p.ops, stat, zxid)))
	}
	return errors.Join(failed...)
}
