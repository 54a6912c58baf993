package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
)

// errDamaged: a table that must have one row has none.
var errDamaged = fmt.Errorf("%w: another program has deleted rows of the schema", backend.ErrInvalid)

// read runs a read until it is answered. see is called for the answer, in the order of the stream; it can be nil.
func (s *session) read(ctx context.Context, statement string, args [][]byte, see func(l *link, rows []row)) ([]row, error) {
	if err := s.contextError(ctx); err != nil {
		return nil, err
	}
	if err := s.Enter(); err != nil {
		return nil, err
	}
	defer s.Leave()
	for tries := 0; ; tries++ {
		l, _, err := s.contact(ctx)
		if err != nil {
			return nil, err
		}
		r := newRequest(statement, args...)
		if see != nil {
			r.see = func(r *request) { see(l, r.rows) }
		}
		r.ended = func(r *request) {
			if r.err == nil && len(r.rows) > 0 {
				s.hub.saw(integer(r.rows[0][0]))
			}
		}
		l.send(r, false)
		if err := s.await(ctx, r.done); err != nil {
			return nil, err
		}
		if r.err == nil && len(r.rows) == 0 {
			return nil, errDamaged
		}
		if r.err == nil {
			if err := s.await(ctx, s.hub.reached(integer(r.rows[0][0]))); err != nil {
				return nil, err
			}
			return r.rows, nil
		}
		var e *pgconn.PgError
		switch {
		case l.ctx.Err() != nil || !errors.As(r.err, &e):
		case transient(e):
			s.pause(ctx, tries)
		case outdated(e):
			l.fail(e)
		default:
			return nil, translate(e)
		}
	}
}

// await waits until done is closed; nil needs no wait. It returns early with the error of ctx or of the session.
func (s *session) await(ctx context.Context, done <-chan struct{}) error {
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
			return s.over(ctx)
		case <-s.Done():
		}
	}
	return s.Err()
}

// stat decodes the columns of a node.
func stat(r row, z int64) backend.Stat {
	return backend.Stat{
		Czxid: integer(r[0]), Mzxid: integer(r[1]), Pzxid: integer(r[2]), Ctime: integer(r[3]), Mtime: integer(r[4]),
		Version: int32(integer(r[5])), Cversion: int32(integer(r[6])), EphemeralOwner: integer(r[7]),
		DataLength: int32(integer(r[8])), NumChildren: int32(integer(r[9])), Container: integer(r[10]) != 0, AsOf: z,
	}
}

// checkPath is CheckPath for a call.
func (s *session) checkPath(op, path string) error {
	err := s.CheckPath(path)
	var e *backend.Error
	if errors.As(err, &e) {
		return &backend.Error{Op: op, Path: path, Err: e.Err}
	}
	return err
}

// observe reads one node, and arms a watch.
func (s *session) observe(ctx context.Context, op, path string, w *backend.Watch) (r row, st backend.Stat, err error) {
	if err := s.checkPath(op, path); err != nil {
		w.Stop()
		return nil, st, err
	}
	rows, err := s.read(ctx, "r_"+op, [][]byte{[]byte(path)}, func(l *link, rows []row) {
		there := rows[0][2] != nil
		if w == nil || !there && op != "exists" {
			return
		}
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		s.hub.arm(l, w, path, op == "children", there, integer(rows[0][0]))
	})
	switch {
	case err != nil:
		w.Stop()
	case rows[0][2] == nil:
		err = backend.ErrNotFound
		if op != "exists" {
			w.Stop()
		}
	default:
		return rows[0], stat(rows[0][2:], integer(rows[0][0])), nil
	}
	return nil, st, &backend.Error{Op: op, Path: path, Err: err}
}

func (s *session) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	r, st, err := s.observe(ctx, "get", path, w)
	if err != nil || len(r[1]) == 0 {
		return nil, st, err
	}
	return r[1], st, nil
}

func (s *session) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	_, st, err := s.observe(ctx, "exists", path, w)
	return st, err
}

func (s *session) Children(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
	r, st, err := s.observe(ctx, "children", path, w)
	if err != nil {
		return nil, st, err
	}
	all, err := children(r[13])
	if err != nil {
		return nil, backend.Stat{}, &backend.Error{Op: "children", Path: path, Err: err}
	}
	return all, st, nil
}

func children(b []byte) ([]string, error) {
	all, err := elements(b)
	names := make([]string, len(all))
	for i, e := range all {
		names[i] = string(e)
	}
	return names, err
}

func (s *session) Arm(ctx context.Context, since int64, targets ...backend.Target) error {
	err := backend.CheckTargets(targets)
	paths := make([]string, len(targets))
	for i, t := range targets {
		paths[i] = t.Path
	}
	if err == nil {
		_, err = s.read(ctx, "r_arm", [][]byte{texts(paths)}, func(l *link, rows []row) {
			s.hub.mu.Lock()
			defer s.hub.mu.Unlock()
			for i, t := range targets {
				r, changed := rows[i], 1
				if t.Children {
					changed = 2
				}
				if r[1] == nil || integer(r[changed]) > since {
					t.Watch.Fire(backend.LookAgain)
				} else {
					s.hub.arm(l, t.Watch, t.Path, t.Children, true, integer(r[0]))
				}
			}
		})
		if err != nil {
			err = &backend.Error{Op: "arm", Path: targets[0].Path, Err: err}
		}
	}
	if err != nil {
		for _, t := range targets {
			t.Watch.Stop()
		}
	}
	return err
}

func (s *session) WatchTree(ctx context.Context, path string, w *backend.TreeWatch) error {
	if !s.cfg.has.Has(backend.Trees) {
		w.Stop()
		return &backend.Error{Op: "watch", Path: path, Err: backend.ErrUnsupported}
	}
	err := backend.CheckTree(path, w)
	if err == nil {
		_, err = s.read(ctx, "r_sync", nil, func(l *link, rows []row) {
			s.hub.mu.Lock()
			defer s.hub.mu.Unlock()
			s.hub.armTree(l, w, path, integer(rows[0][0]))
		})
		if err != nil {
			err = &backend.Error{Op: "watch", Path: path, Err: err}
		}
	}
	if err != nil {
		w.Stop()
	}
	return err
}

// mostReads and mostReadBytes bound one request of ReadMany.
const (
	mostReads     = 512
	mostReadBytes = backend.MaxRequest
)

func (s *session) ReadMany(ctx context.Context, reads ...backend.Read) ([]backend.ReadResult, error) {
	first := ""
	if len(reads) > 0 {
		first = reads[0].Path
	}
	if !s.cfg.has.Has(backend.Batches) {
		return nil, &backend.Error{Op: "read", Path: first, Err: backend.ErrUnsupported}
	}
	if err := backend.CheckReads(reads); err != nil {
		return nil, err
	}
	results := make([]backend.ReadResult, 0, len(reads))
	for len(reads) > 0 {
		n, size := 0, 0
		for n < min(len(reads), mostReads) && (n == 0 || size+len(reads[n].Path) <= mostReadBytes) {
			size += len(reads[n].Path)
			n++
		}
		part, err := s.readPart(ctx, reads[:n])
		if err != nil {
			return nil, &backend.Error{Op: "read", Path: first, Err: err}
		}
		results, reads = append(results, part...), reads[len(part):]
	}
	return results, nil
}

// readPart answers the first reads, as many as one reply takes.
func (s *session) readPart(ctx context.Context, reads []backend.Read) ([]backend.ReadResult, error) {
	paths, kids := make([]string, len(reads)), make([]bool, len(reads))
	for i, r := range reads {
		paths[i], kids[i] = r.Path, r.Children
	}
	rows, err := s.read(ctx, "r_many", [][]byte{texts(paths), bools(kids)}, nil)
	if err != nil {
		return nil, err
	}
	results := make([]backend.ReadResult, 0, len(reads))
	for i, r := range reads {
		row, result := rows[i], backend.ReadResult{}
		switch {
		case boolean(row[14]):
			return results, nil
		case row[2] == nil && r.Children:
			result.Err = &backend.Error{Op: "children", Path: r.Path, Err: backend.ErrNotFound}
		case row[2] == nil:
			result.Err = &backend.Error{Op: "get", Path: r.Path, Err: backend.ErrNotFound}
		case r.Children:
			if result.Names, err = children(row[13]); err != nil {
				return nil, err
			}
		default:
			if len(row[1]) > 0 {
				result.Data = row[1]
			}
			result.Stat = stat(row[2:], integer(row[0]))
		}
		results = append(results, result)
	}
	return results, nil
}

func (s *session) Sync(ctx context.Context, path string) error {
	if err := s.checkPath("sync", path); err != nil {
		return err
	}
	s.mu.Lock()
	before := make([]*request, 0, len(s.commits))
	for r := range s.commits {
		before = append(before, r)
	}
	s.mu.Unlock()
	var err error
	for _, r := range before {
		if err == nil {
			err = s.await(ctx, r.done)
		}
	}
	if err == nil {
		_, err = s.read(ctx, "r_sync", nil, nil)
	}
	if err != nil {
		return &backend.Error{Op: "sync", Path: path, Err: err}
	}
	return nil
}
