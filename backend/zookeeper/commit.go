package zookeeper

import (
	"context"
	"fmt"

	"github.com/go-coord/coord/backend"
)

// serverMax is just below the request size at which a server drops the connection, 1 MiB by
// default. CheckOps counts an ACL of one entry.
const serverMax = 1<<20 - 1024

// Commit applies operations, all or none. It sends them once, and again only
// after an overloaded server has answered that it did not run them.
func (s *session) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	if err := backend.CheckOps(ops); err != nil {
		return nil, err
	}
	for i := range ops {
		if rule := ownRule(ops[i].Path); rule != "" {
			return nil, &backend.Error{Op: ops[i].Kind.String(), Path: ops[i].Path, Index: i, Err: badPath(rule)}
		}
	}
	if err := s.checkSize(ops); err != nil {
		return nil, err
	}
	fail := func(index int, err error) ([]backend.Result, error) {
		e := &backend.Error{Op: "commit", Path: ops[0].Path, Index: index, Err: err}
		if index < 0 && len(ops) == 1 {
			e.Op = ops[0].Kind.String()
		} else if index >= 0 {
			e.Op, e.Path = ops[index].Kind.String(), ops[index].Path
		}
		return nil, e
	}
	c := s.newCall(commitOp(ops))
	defer s.release(c)
	c.steps = appendSteps(c.steps, ops)
	c.frame = encodeCommit(c.frame, ops, c.steps, s.cfg.aclOf)
	for tries := 1; ; tries++ {
		if err := s.checkFrame(c.frame); err != nil {
			return fail(len(ops)-1, err)
		}
		wasSent, err := s.do(ctx, c)
		switch {
		case err != nil && wasSent:
			return fail(-1, backend.Uncertain(err))
		case err != nil:
			return fail(-1, err)
		}
		a := &c.answer
		switch verdict, err := judge(a.code); verdict {
		case granted:
			s.mu.Lock()
			s.past.committed(ops, a.results, c.zxid)
			s.mu.Unlock()
			backend.Tell(ops, a.results)
			return a.results, nil
		case refused:
			index := a.failed
			if len(ops) == 1 {
				index = 0
			}
			if index >= 0 {
				err = withNode(a.code, err, ops[index].Kind.String(), ops[index].Path)
			}
			return fail(index, err)
		case expired:
			return fail(-1, s.ended(ctx))
		case throttled:
			if err := s.easeOff(ctx, c, tries); err != nil {
				return fail(-1, err)
			}
		default:
			return fail(-1, backend.Uncertain(err))
		}
	}
}

// checkSize refuses a commit that an ACL with many entries makes too large for a server.
func (s *session) checkSize(ops []backend.Op) error {
	size := 0
	for i := range ops {
		size += 64 + len(ops[i].Path) + len(ops[i].Data)
		switch ops[i].Kind {
		case backend.OpCreate:
			size += len(s.cfg.aclOf(ops[i].Shared))
		case backend.OpAbsent: // it has two steps
			size += 64 + len(ops[i].Path) + len(s.cfg.aclOf(false))
		}
		if size > serverMax {
			return &backend.Error{Op: ops[i].Kind.String(), Path: ops[i].Path, Index: i,
				Err: fmt.Errorf("%w: the request has at least %d bytes with its ACLs, limit %d", backend.ErrTooLarge, size, serverMax)}
		}
	}
	return nil
}
