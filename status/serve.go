package status

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/go-coord/coord"
)

// ServeHTTP serves the page and the probes: see the comment of the package.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Vary", "Accept")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		head.Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	rep := h.Report()
	switch path.Base(r.URL.Path) {
	case "healthz":
		answer(w, r, probe{Reason: reason(rep.alive())}, rep)
	case "readyz":
		answer(w, r, probe{Reason: reason(h.ready(rep))}, rep)
	default:
		if wantsJSON(r) {
			writeJSON(w, http.StatusOK, rep)
			return
		}
		h.page(w, r, rep)
	}
}

// probe is the answer of a probe as JSON.
type probe struct {
	Status  string       `json:"status"` // "ok" or "fail"
	Reason  string       `json:"reason,omitempty"`
	At      time.Time    `json:"at"`
	Clients []probePhase `json:"clients"`
}

type probePhase struct {
	Phase   string    `json:"phase"`
	Since   time.Time `json:"since"`
	Session string    `json:"session,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// reason returns the text of an error, which is not empty unless err is nil.
func reason(err error) string {
	if err == nil {
		return ""
	}
	return cmp.Or(err.Error(), "no reason was given")
}

// answer writes the answer of a probe: with 200 if it has no reason, else with 503.
func answer(w http.ResponseWriter, r *http.Request, p probe, rep Report) {
	code := http.StatusOK
	p.Status, p.At, p.Clients = "ok", rep.At, []probePhase{}
	if p.Reason != "" {
		p.Status, code = "fail", http.StatusServiceUnavailable
	}
	for _, c := range rep.Clients {
		p.Clients = append(p.Clients, probePhase{c.Phase, c.Since, c.Session, c.Error})
	}
	if wantsJSON(r) {
		writeJSON(w, code, p)
		return
	}
	var text bytes.Buffer
	text.WriteString(p.Status)
	if p.Reason != "" {
		fmt.Fprintf(&text, ": %s", p.Reason)
	}
	text.WriteByte('\n')
	for _, c := range p.Clients {
		fmt.Fprintf(&text, "%s for %s", c.Phase, age(rep.At, c.Since))
		if c.Session != "" {
			fmt.Fprintf(&text, ", session %s", c.Session)
		}
		if c.Error != "" {
			fmt.Fprintf(&text, ": %s", c.Error)
		}
		text.WriteByte('\n')
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	w.Write(text.Bytes())
}

// wantsJSON reports whether the request asks for JSON. Browsers do not.
func wantsJSON(r *http.Request) bool {
	if f := r.URL.Query().Get("format"); f != "" {
		return f == "json"
	}
	for _, accept := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(accept, ",") {
			kind, _, _ := strings.Cut(part, ";")
			switch strings.TrimSpace(kind) {
			case "application/json":
				return true
			case "text/html", "text/plain":
				return false
			}
		}
	}
	return false
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	w.Write(append(text, '\n'))
}

//go:embed page.html
var pageText string

// page writes the page. It needs no script.
func (h *Handler) page(w http.ResponseWriter, r *http.Request, rep Report) {
	refresh := r.URL.Query().Get("refresh") == "5"
	data := struct {
		Report
		NotReady string
		Refresh  bool
	}{rep, reason(h.ready(rep)), refresh}
	// The template is parsed for each page: few people look at it, and the package has no globals
	// that a program pays for without using it.
	t, err := template.New("page").Funcs(template.FuncMap{
		"age":  func(since time.Time) string { return age(rep.At, since) },
		"full": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") },
		"took": round,
		"good": func(phase string) bool { return phase == coord.PhaseConnected.String() },
		"bad": func(phase string) bool {
			return phase == coord.PhaseLost.String() || phase == coord.PhaseClosed.String()
		},
		"table": func(name string, list []Hold, more int) holdTable { return holdTable{name, list, more} },
		"more":  func(c Client, list string) int { return c.More[list] },
	}).Parse(pageText)
	var page bytes.Buffer
	if err == nil {
		err = t.Execute(&page, data)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
	w.Write(page.Bytes())
}

// holdTable is a table of holds on the page.
type holdTable struct {
	Name string
	List []Hold
	More int
}

// age returns the time from since to now as text.
func age(now, since time.Time) string {
	if since.IsZero() {
		return "an unknown time"
	}
	return round(max(now.Sub(since), 0))
}

// round returns d with two units at most.
func round(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}
