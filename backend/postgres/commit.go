package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// mostPath is the longest path of a new node: an entry of an index takes no more.
const mostPath = 2600

// checkOps refuses operations that cannot be committed.
func (s *session) checkOps(ops []backend.Op) error {
	if err := s.Limits().Refuse(ops); err != nil {
		return err
	}
	for i := range ops {
		op := &ops[i]
		var why error
		switch {
		case op.Kind != backend.OpCreate:
		case len(op.Path) > mostPath:
			why = fmt.Errorf("%w: a path of more than %d bytes", backend.ErrTooLarge, mostPath)
		case op.Mode == backend.Container && !s.cfg.has.Has(backend.Containers):
			why = backend.ErrUnsupported
		}
		if why != nil {
			return &backend.Error{Op: op.Kind.String(), Path: op.Path, Index: i, Err: why}
		}
	}
	return nil
}

func (s *session) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	if err := s.checkOps(ops); err != nil {
		return nil, err
	}
	results, err := s.commit(ctx, ops)
	if err != nil {
		return nil, contact.CommitError(ops, err)
	}
	return results, nil
}

// commit repeats a commit until it is applied or refused, or its outcome is unknown.
func (s *session) commit(ctx context.Context, ops []backend.Op) ([]backend.Result, error) {
	if err := s.contextError(ctx); err != nil {
		return nil, err
	}
	if err := s.Enter(); err != nil {
		return nil, err
	}
	defer s.Leave()
	args := encode(ops)
	alone := false
	for tries := 0; ; tries++ {
		l, epoch, err := s.contact(ctx)
		if err != nil {
			return nil, err
		}
		r := newRequest("c_commit", append([][]byte{int8(s.id), int4(epoch), bool1(s.cfg.early)}, args...)...)
		r.alone = alone
		if err := s.send(ctx, l, r); err != nil {
			return nil, err
		}
		var e *pgconn.PgError
		switch {
		case r.err == nil && string(r.rows[0][0]) == "moved":
			l.fail(errMoved)
		case r.err == nil:
			results, err := s.result(ctx, ops, r.rows[0])
			if !errors.Is(err, ErrBusy) {
				return results, err
			}
			s.pause(ctx, tries)
		case r.unsure:
			return nil, backend.Uncertain(nil)
		case !errors.As(r.err, &e): // not sent
		case r.shared && e.Code != "55P03": // a lock timeout comes from the wait for the turn
			alone = true // another commit of the group can be the cause
		case transient(e):
			s.pause(ctx, tries)
		case outdated(e):
			l.fail(e)
		default:
			return nil, translate(e)
		}
	}
}

// send queues a commit and waits until r.done is closed. It returns an error if ctx or the session ends first, and if the session is
// over when the answer comes.
func (s *session) send(ctx context.Context, l *link, r *request) error {
	s.mu.Lock()
	s.commits[r] = struct{}{}
	s.mu.Unlock()
	r.ended = s.committed
	l.commit(r)
	select {
	case <-r.done:
	case <-ctx.Done():
	case <-s.Done():
	}
	select {
	case <-r.done:
		err := s.Err()
		if err != nil && (r.unsure || r.err == nil) {
			err = backend.Uncertain(err)
		}
		return err
	default:
	}
	err := s.over(ctx)
	if l.drop(r) {
		return err
	}
	return backend.Uncertain(err) // Sync waits for the answer, or for the end of the link
}

// committed handles the end of a commit, even if its caller has returned.
func (s *session) committed(r *request) {
	if r.err == nil && len(r.rows) == 1 {
		s.hub.saw(integer(r.rows[0][2])) // also of a refusal, which shows the state at this position
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.commits, r)
}

// encode returns the arguments of a commit: one array for each field of the operations.
func encode(ops []backend.Op) [][]byte {
	n := len(ops)
	kinds, modes, versions := make([]int32, n), make([]int32, n), make([]int32, n)
	paths, dirs, datas := make([]string, n), make([]string, n), make([][]byte, n)
	for i, op := range ops {
		kinds[i], modes[i], versions[i] = int32(op.Kind), int32(op.Mode), op.Version
		paths[i], dirs[i], datas[i] = op.Path, parent(op.Path), op.Data
	}
	return [][]byte{int4s(kinds), texts(paths), texts(dirs), byteas(datas), int4s(modes), int4s(versions)}
}

// joined returns the arguments that make several commits, by the arguments of each.
func joined(commits []*request) [][]byte {
	const own = 3 // arguments that all have in common
	sizes := make([]int32, len(commits))
	for i, r := range commits {
		sizes[i] = int32(lengthOf(r.args[own]))
	}
	args := append(slices.Clone(commits[0].args[:own]), int4s(sizes))
	for i := own; i < len(commits[0].args); i++ {
		arrays := make([][]byte, len(commits))
		for j, r := range commits {
			arrays[j] = r.args[i]
		}
		args = append(args, concat(arrays))
	}
	return args
}

// refusals are the statuses of commits that are refused.
var refusals = map[string]error{
	"notfound": backend.ErrNotFound, "exists": backend.ErrExists, "nochildren": backend.ErrNoChildren,
	"badversion": backend.ErrBadVersion, "notempty": backend.ErrNotEmpty, "busy": ErrBusy,
}

// result returns the results of a commit, or why it was refused.
func (s *session) result(ctx context.Context, ops []backend.Op, r row) ([]backend.Result, error) {
	switch status := string(r[0]); {
	case status == "ok":
		results, err := decode(ops, r)
		if err != nil {
			return nil, backend.Uncertain(err)
		}
		s.await(ctx, s.hub.reached(integer(r[2])))
		if err := s.Err(); err != nil {
			return nil, backend.Uncertain(err)
		}
		return results, nil // even if ctx has ended meanwhile
	case status == "lost":
		s.end(errRevoked)
		return nil, s.Err()
	case refusals[status] == nil:
		return nil, fmt.Errorf("postgres: a commit with the status %q", status)
	default:
		at := int(integer(r[1]))
		if at < 0 || at >= len(ops) {
			return nil, fmt.Errorf("postgres: a refusal of operation %d of %d", at, len(ops))
		}
		return nil, &backend.Error{Op: ops[at].Kind.String(), Path: ops[at].Path, Index: at, Err: refusals[status]}
	}
}

func decode(ops []backend.Op, r row) ([]backend.Result, error) {
	z := integer(r[2])
	paths, err := elements(r[3])
	siblings, err2 := elements(r[4])
	stats, err3 := elements(r[5])
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, err
	}
	at := func(all [][]byte, i int) []byte {
		if i < len(all) {
			return all[i]
		}
		return nil
	}
	results := make([]backend.Result, len(ops))
	for i, op := range ops {
		switch op.Kind {
		case backend.OpCreate:
			results[i] = backend.Result{Path: string(at(paths, i)), Czxid: z, Siblings: int32(integer(at(siblings, i)))}
		case backend.OpSetData, backend.OpCarry:
			if len(stats) < 11*i+11 {
				return nil, fmt.Errorf("postgres: no Stat of operation %d", i)
			}
			results[i].Stat = stat(stats[11*i:11*i+11], z)
		}
	}
	return results, nil
}
