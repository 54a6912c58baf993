package core

import (
	"cmp"
	"context"
	"errors"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// journalDir holds the journal nodes of all clients, below the namespace. It is a
// container, as is its parent.
const journalDir = ownDir + "/journal"

// ownDir is the directory that belongs to the library, below the namespace.
const ownDir = "/_coord"

// journalEntry is a small ephemeral node that proves whether a commit was applied. Each commit
// that must not apply twice also writes its own id there. Each journal entry serves one commit
// at a time, so its data refers to that commit.
type journalEntry struct{ path string }

// CommitOnce applies ops exactly once or not at all, and reports which. If the outcome
// of the commit is unknown, it reads its journal entry after a Sync: the entry has the id of the commit if
// and only if the commit was applied. If it was not applied, CommitOnce sends it again.
// The error matches ErrUncertain only if the session, or ctx, ends first, or if the entry cannot be
// read, since an outsider has deleted it for example. If the service has no space for an entry,
// CommitOnce carries out mere deletions without an entry, see commitWithout.
//
// The results are nil if the commit was found to be applied after its reply was lost;
// zxid is known either way. The error of an operation carries its index in ops.
func (s *Session) CommitOnce(ctx context.Context, ops ...backend.Op) (results []backend.Result, zxid int64, err error) {
	results, proof, err := s.CommitProof(ctx, ops...)
	return results, proof.Mzxid, err
}

// CommitProof is CommitOnce, and also returns the time of the commit. proof is the Stat of the journal
// entry, which the commit has set: its Mzxid is the position of the commit, and its Mtime the time. The
// proof of a commit without a journal entry has no time.
func (s *Session) CommitProof(ctx context.Context, ops ...backend.Op) (results []backend.Result, proof backend.Stat, err error) {
	for {
		id := s.c.NewGUID(ops[0].Path)
		r, err := s.takeEntry(ctx)
		if errs.Answers(err, backend.ErrNoSpace) && backend.OnlyDeletes(ops) {
			return s.commitWithout(ctx, ops)
		}
		if err != nil {
			return nil, proof, err
		}
		results, proof, err := s.commitUnder(ctx, r, id, ops)
		if errs.Answers(err, backend.ErrNoSpace) && !backend.IsUncertain(err) && backend.OnlyDeletes(ops) {
			return s.commitWithout(ctx, ops)
		}
		if errors.Is(err, errs.ErrAgain) {
			continue // an outsider deleted the journal entry
		}
		return results, proof, err
	}
}

// commitWithout is CommitProof without a journal entry, for deletions on a service that has no space for an
// entry. If the reply is lost, the error matches ErrUncertain, since nothing proves which client has
// deleted the nodes.
func (s *Session) commitWithout(ctx context.Context, ops []backend.Op) (results []backend.Result, proof backend.Stat, err error) {
	results, err = s.b.Commit(ctx, ops...)
	if err != nil {
		return nil, proof, err
	}
	stat, err := s.b.Exists(ctx, "/", nil) // the position of this read is not before the commit
	if err != nil {
		stat.AsOf = 0
	}
	return results, backend.Stat{Mzxid: stat.AsOf}, nil
}

// commitUnder is CommitProof with the journal entry r, into which the commit writes id. The error is
// ErrAgain if an outsider has deleted the entry, so that nothing was applied.
func (s *Session) commitUnder(ctx context.Context, r *journalEntry, id string, ops []backend.Op) (results []backend.Result, proof backend.Stat, err error) {
	all := append(ops[:len(ops):len(ops)], backend.SetData(r.path, []byte(id), backend.AnyVersion))
	path := all[0].Path
	pause := NewPauses(s.c)
	for {
		began := s.send()
		results, err := s.b.Commit(ctx, all...)
		if err == nil {
			proof = results[len(ops)].Stat
			s.sent(began, &proof)
			s.returnEntry(r)
			return results[:len(ops)], proof, nil
		}
		if !backend.IsUncertain(err) {
			var e *backend.Error
			if errors.As(err, &e) && e.Index == len(ops) {
				if errs.IsNotFound(err) {
					return nil, proof, errs.ErrAgain
				}
				e.Index = -1 // the caller's operations did not cause it
			}
			s.returnEntry(r)
			return nil, proof, err
		}
		if errs.IsOver(err) || ctx.Err() != nil {
			s.dropEntry(r.path) // its data means nothing before the commit has settled
			return nil, proof, err
		}
		lost := err
		if err := s.b.Sync(ctx, r.path); err != nil {
			s.dropEntry(r.path)
			return nil, proof, &backend.Error{Op: "commit", Path: path, Index: -1, Err: backend.Uncertain(err)}
		}
		data, stat, err := s.b.Get(ctx, r.path, nil)
		switch {
		case errs.IsNotFound(err):
			return nil, proof, lost // the outcome cannot be determined any more
		case err != nil:
			s.dropEntry(r.path)
			return nil, proof, &backend.Error{Op: "commit", Path: path, Index: -1, Err: backend.Uncertain(err)}
		case string(data) == id:
			s.resolved(ctx, path, true)
			s.returnEntry(r)
			return nil, stat, nil
		}
		s.resolved(ctx, path, false)
		pause.Wait(ctx.Done(), s.b.Done())
	}
}

// Proof returns an operation that is as large as the operation that CommitOnce adds to a commit.
func (c *Client) Proof() backend.Op {
	return backend.SetData(c.root+journalDir+"/"+c.NewGUID(journalDir), make([]byte, layout.GUIDLen), backend.AnyVersion)
}

// takeEntry returns a free journal entry of the session, or a new one.
func (s *Session) takeEntry(ctx context.Context) (*journalEntry, error) {
	s.mu.Lock()
	if n := len(s.entries); n > 0 {
		r := s.entries[n-1]
		s.entries = s.entries[:n-1]
		s.mu.Unlock()
		return r, nil
	}
	s.mu.Unlock()
	dir := s.c.root + journalDir
	path := dir + "/" + s.c.NewGUID(dir)
	// If the node exists, an attempt whose reply was lost has created it: no other
	// client uses this name.
	_, err := s.MakeNode(ctx, backend.Create(path, nil, backend.Ephemeral), func(dir string) error { return s.Ensure(ctx, dir) })
	if backend.IsUncertain(err) {
		s.dropEntry(path)
	}
	if err != nil {
		return nil, s.NotSent(ctx, err)
	}
	return &journalEntry{path}, nil
}

// NotSent returns the error of a call that failed with err in a step before its own write, such as the
// creation of a directory. If err matches ErrUncertain, the error of the call must not: the outcome of
// the step is uncertain, but the call did not send its write.
func (s *Session) NotSent(ctx context.Context, err error) error {
	if !backend.IsUncertain(err) {
		return err
	}
	return cmp.Or(s.ContextError(ctx), s.b.Err(), err)
}

// dropEntry removes a journal entry in the background. If the journal was created with other
// credentials, the service can refuse that; the journal entry then goes with its session.
func (s *Session) dropEntry(path string) {
	if s.c.IsClosing() {
		return
	}
	s.CleanUp("remove", path, func(ctx context.Context) error {
		if err := s.Remove(ctx, path); !errors.Is(err, backend.ErrDenied) {
			return err
		}
		return nil
	})
}

// returnEntry makes a journal entry free for the next commit.
func (s *Session) returnEntry(r *journalEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = append(s.entries, r)
}
