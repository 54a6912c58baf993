package core

import (
	"context"
	"errors"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/trace"
)

// Move moves the hold to another node: one commit creates that node, with data, and deletes the
// node of the hold. next returns the path of the other node, or the reason why the hold cannot move: moving
// says that another move is under way. next is called under the mutex of the hold. Move returns the path of
// the node that the hold leaves. If ctx ends first, the error matches ErrUncertain, and the move continues
// in the background.
func (h *Hold) Move(ctx context.Context, data []byte, next func(path string, moving bool) (string, error)) (from string, err error) {
	from, to, err := h.beginMove(next)
	if err != nil {
		return "", err
	}
	result := make(chan error, 1)
	if !h.s.c.GoWork(func() { result <- h.move(ctx, from, to, data) }) {
		h.endMove("")
		return from, backend.ErrClosed
	}
	select {
	case err := <-result:
		return from, err
	case <-ctx.Done():
		return from, backend.Uncertain(backend.ContextError(ctx))
	}
}

// beginMove marks the hold as about to move.
func (h *Hold) beginMove(next func(path string, moving bool) (string, error)) (from, to string, err error) {
	if err := h.Err(); err != nil {
		return "", "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if to, err = next(h.path, h.moving != nil); err != nil {
		return "", "", err
	}
	if h.err != nil {
		return "", "", h.err
	}
	h.moving = make(chan struct{})
	return h.path, to, nil
}

// move carries out a move.
func (h *Hold) move(ctx context.Context, from, to string, data []byte) error {
	err := h.s.replaceNode(from, to, data)
	if err == nil {
		h.endMove(to)
	} else {
		h.endMove("")
	}
	switch {
	case errs.IsNotFound(err):
		h.NodeGone(context.Background(), from)
		err = h.Err()
	case errs.IsOver(err):
		h.Lose(err)
		err = h.Err()
	case err == nil:
		h.Emit(ctx, func(at trace.Subject, _ time.Duration) trace.Event {
			return trace.HoldDowngraded{Subject: at, Token: h.token}
		})
	}
	return err
}

// endMove ends the move. From now on the node at path is that of the hold; an empty path changes nothing.
func (h *Hold) endMove(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if path != "" {
		h.path = path
	}
	close(h.moving)
	h.moving = nil
}

// replaceNode deletes the node at from and creates one at to, in one commit. If the reply
// is lost, it determines the outcome. The error matches ErrNotFound if an outsider
// deleted the node at from.
func (s *Session) replaceNode(from, to string, data []byte) error {
	ctx := context.Background() // the session bounds it
	err := s.CommitAgain(ctx, backend.Create(to, data, backend.Ephemeral), backend.Delete(from, backend.AnyVersion))
	if errors.Is(err, backend.ErrExists) {
		return nil // created by an attempt whose reply was lost, since the name is this hold's alone
	}
	return err
}

// awaitMove waits until a downgrade under way is complete. The session and ctx bound
// it.
func (h *Hold) awaitMove(ctx context.Context) error {
	h.mu.Lock()
	moving := h.moving
	h.mu.Unlock()
	if moving == nil {
		return nil
	}
	select {
	case <-moving:
		return nil
	case <-ctx.Done():
		return backend.ContextError(ctx)
	}
}
