package main

import (
	"bytes"
	"context"
	"io"
	"time"
)

// Reads and writes of files know no context, and can block for ever: at a terminal without
// input, or a pipe without a reader. These functions return when ctx ends. A blocked call is
// abandoned then, since coordctl ends.

// readAll reads all of r.
func readAll(ctx context.Context, r io.Reader) ([]byte, error) {
	read := make(chan []byte, 1)
	err := blocking(ctx, func() error {
		data, err := io.ReadAll(r)
		read <- data
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-read, nil
}

// output is a writer whose writes end with ctx.
type output struct {
	ctx context.Context
	w   io.Writer
}

func (o output) Write(p []byte) (int, error) {
	p = bytes.Clone(p) // the caller may reuse it
	err := blocking(o.ctx, func() error {
		_, err := o.w.Write(p)
		return err
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// blocking runs f, and returns when f has returned, or ctx has ended.
func blocking(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

const lastWriteLimit = time.Second // for an output that nothing reads

// outlasting returns a context that ends lastWriteLimit after ctx. A verb prints its
// result with it: if ctx ends before the work is complete, the user still learns which part was done.
func outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(lastWriteLimit, func() { cancel(context.Cause(ctx)) })
	})
	return late, func() {
		stop()
		cancel(nil)
	}
}
