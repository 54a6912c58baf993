package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
)

// print prints v as JSON in one line, or the text.
func (t *tool) print(ctx context.Context, v any, text string) error {
	out := output{ctx, t.stdout}
	if t.json {
		return json.NewEncoder(out).Encode(v)
	}
	_, err := io.WriteString(out, text)
	return err
}

// report prints v as JSON for people too, or the text.
func (t *tool) report(ctx context.Context, v any, text string) error {
	out := output{ctx, t.stdout}
	if t.json {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	_, err := io.WriteString(out, text)
	return err
}

// onTerminal reports whether f is a terminal.
func onTerminal(f any) bool {
	file, ok := f.(*os.File)
	return ok && isTerminal(file)
}
