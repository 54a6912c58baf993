package outbox

import (
	"context"
	"log/slog"
	"time"
)

// Logger is a slog.Logger whose lines go through a Box. Each keeps the time and
// the place of its call.
type Logger struct {
	*slog.Logger
	box *Box[slog.Record] // nil for one that is silent
}

// NewLogger returns a Logger in front of l, which may be nil for silence. Whatever
// l's Handler does, also whether it is Enabled, is done on the goroutine of the
// Box.
func NewLogger(l *slog.Logger) *Logger {
	if l == nil {
		return &Logger{Logger: slog.New(slog.DiscardHandler)}
	}
	h, ctx := l.Handler(), context.Background()
	write := func(r slog.Record) {
		if h.Enabled(ctx, r.Level) {
			h.Handle(ctx, r) // a line that cannot be written has nowhere else to go
		}
	}
	box := New(write, func(n int) {
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "coord: lines were dropped: the Logger is too slow", 0)
		r.Add("lines", n)
		write(r)
	})
	return &Logger{Logger: slog.New(handler{box}), box: box}
}

// Silent reports that nothing is written.
func (l *Logger) Silent() bool { return l.box == nil }

// Drain is that of the Box.
func (l *Logger) Drain(bound time.Duration) bool { return l.box == nil || l.box.Drain(bound) }

// handler is in front of a Box. The library adds no attributes and no groups to a
// Logger of its own; were it to, they would be lost, so these methods panic.
type handler struct{ box *Box[slog.Record] }

func (h handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(_ context.Context, r slog.Record) error {
	h.box.Put(r)
	return nil
}

func (h handler) WithAttrs([]slog.Attr) slog.Handler { panic("outbox: a Logger with attributes") }
func (h handler) WithGroup(string) slog.Handler      { panic("outbox: a Logger with a group") }
