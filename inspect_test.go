package coord_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

var updateInspect = flag.Bool("update-inspect", false, "write testdata/inspect from what memory shows")

// inspectScene brings a recipe into a state that is worth looking at. What it leaves
// running ends with the test.
type inspectScene struct {
	name  string
	path  string
	data  bool
	setup func(w *world)
}

// TestInspectTellsWhatStandsThere compares what Inspect says of each recipe, made by
// the recipe itself, with the golden files; on memory and on ZooKeeper it must be the
// same. After a change that is meant:
//
//	go test -run TestInspectTellsWhatStandsThere/./memory -update-inspect .
func TestInspectTellsWhatStandsThere(t *testing.T) {
	for _, sc := range inspectScenes {
		t.Run(sc.name, func(t *testing.T) {
			onEach(t, func(w *world) {
				sc.setup(w)
				var mu sync.Mutex
				calls, syncs := 0, 0
				c := w.open("inspector", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					switch c.Op {
					case "commit":
						w.t.Errorf("Inspect writes: %v", c.Ops)
					case "sync":
						syncs++
					default:
						mu.Lock()
						calls++
						mu.Unlock()
					}
					return nil
				}})
				in, err := coord.Inspect(context.Background(), c, sc.path, &coord.InspectOptions{Data: sc.data})
				if err != nil {
					w.t.Fatal(err)
				}
				if w.fake && syncs != 1 || calls == 0 || syncs == 1 && calls > in.Reads {
					w.t.Errorf("%d requests and %d Syncs; %d were told", calls, syncs, in.Reads)
				}
				inspectTimes(w, in)
				inspectColumns(w.t, in.String())
				inspectNormal(in, w.path(""))
				compareInspection(w.t, sc.name, in)
			})
		})
	}
}

// compareInspection compares a normal form with its golden file.
func compareInspection(t *testing.T, name string, in *coord.Inspection) {
	t.Helper()
	js, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got := in.String() + "\n" + string(js) + "\n"
	file := filepath.Join("testdata", "inspect", name+".txt")
	if *updateInspect {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
	// What was written as JSON can be read again.
	var again coord.Inspection
	if err := json.Unmarshal(js, &again); err != nil {
		t.Fatal(err)
	}
	if again.String() != in.String() {
		t.Errorf("after a round trip through JSON:\n%s\nwant\n%s", again.String(), in.String())
	}
}

// inspectTimes checks that all times are near now, and in UTC.
func inspectTimes(w *world, in *coord.Inspection) {
	w.t.Helper()
	now := time.Now()
	walkInspection(reflect.ValueOf(in), "", func(field string, v reflect.Value) {
		at, ok := v.Interface().(time.Time)
		if !ok || at.IsZero() {
			return
		}
		if d := at.Sub(now).Abs(); d > 2*time.Hour {
			w.t.Errorf("%s: %v, now it is %v", field, at, now)
		}
		if _, offset := at.Zone(); offset != 0 || at.Location() != time.UTC {
			w.t.Errorf("%s: %v is not in UTC", field, at)
		}
	})
}

var (
	inspectGUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	columnGap   = regexp.MustCompile(`  +`)
)

// inspectNormal replaces what differs from run to run: times, sessions, GUIDs and
// zxids, by numbers in order. Which of them are the same, and which zxid is greater,
// stays.
func inspectNormal(in *coord.Inspection, root string) {
	var zxids []int64
	isZxid := func(field string) bool {
		return slices.Contains([]string{"Token", "Zxid", "Czxid", "Mzxid"}, field)
	}
	walkInspection(reflect.ValueOf(in), "", func(field string, v reflect.Value) {
		if isZxid(field) && v.Int() != 0 {
			zxids = append(zxids, v.Int())
		}
	})
	slices.Sort(zxids)
	zxids = slices.Compact(zxids)
	names := make(map[string]string)
	number := func(s, format string) string {
		if names[s] == "" {
			n := strconv.Itoa(len(names) + 1)
			names[s] = format[:len(format)-len(n)] + n
		}
		return names[s]
	}
	walkInspection(reflect.ValueOf(in), "", func(field string, v reflect.Value) {
		switch {
		case isZxid(field):
			if v.Int() != 0 {
				i, _ := slices.BinarySearch(zxids, v.Int())
				v.SetInt(int64(101 + i))
			}
		case v.Type() == reflect.TypeFor[time.Time]():
			if !v.Interface().(time.Time).IsZero() {
				v.Set(reflect.ValueOf(time.Date(2000, 1, 2, 3, 4, 5, 0, time.UTC)))
			}
		case v.Kind() == reflect.String:
			s := v.String()
			if field == "Session" && s != "" {
				s = number(s, "0x00")
			}
			s = inspectGUID.ReplaceAllStringFunc(s, func(g string) string { return number(g, "00000000-0000-8000-8000-000000000000") })
			if root != "" && field == "Path" {
				s = strings.TrimPrefix(s, root)
			}
			v.SetString(s)
		}
	})
}

// walkInspection calls f with every leaf of v, and the name of the field it is in.
func walkInspection(v reflect.Value, field string, f func(string, reflect.Value)) {
	switch {
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			walkInspection(v.Elem(), field, f)
		}
	case v.Type() == reflect.TypeFor[time.Time](), v.Type() == reflect.TypeFor[[]byte]():
		f(field, v)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			walkInspection(v.Field(i), v.Type().Field(i).Name, f)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			walkInspection(v.Index(i), field, f)
		}
	default:
		f(field, v)
	}
}

// inspectColumns checks that the cells of each table begin below their heads.
func inspectColumns(t *testing.T, text string) {
	t.Helper()
	if strings.Contains(text, " \n") {
		t.Errorf("blanks at the end of a line:\n%s", text)
	}
	var heads []int
	for _, line := range strings.Split(text, "\n") {
		runes := []rune(line)
		switch {
		case !strings.HasPrefix(line, "  "):
			heads = nil
		case heads == nil:
			for _, at := range columnGap.FindAllStringIndex(line, -1) {
				heads = append(heads, at[1])
			}
		case len(heads) > 1 && strings.Contains(line[2:], "  "):
			for _, at := range columnGap.FindAllStringIndex(line, -1) {
				if col := len([]rune(line[:at[1]])); col < len(runes) && !slices.Contains(heads, col) {
					t.Errorf("a cell at column %d is below no head (%v):\n%s", col, heads, text)
				}
			}
		}
	}
}

// TestTheJSONOfAnInspectionHasStableNames: every field has a name of its own in JSON,
// in lower case.
func TestTheJSONOfAnInspectionHasStableNames(t *testing.T) {
	lower := regexp.MustCompile(`^[a-z]+(_[a-z]+)*(,omitempty|,omitzero)?$`)
	done := make(map[reflect.Type]bool)
	var check func(reflect.Type)
	check = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() || done[typ] {
			return
		}
		done[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			if !f.Anonymous && !lower.MatchString(f.Tag.Get("json")) {
				t.Errorf("%v.%s has the tag %q", typ, f.Name, f.Tag)
			}
			check(f.Type)
		}
	}
	check(reflect.TypeFor[coord.Inspection]())
	if len(done) < 15 {
		t.Errorf("only %d types were seen", len(done))
	}
}

// TestInspectRefusesBadInput: errors of the caller are told at once.
func TestInspectRefusesBadInput(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", nil)
		for _, path := range []string{"", "/", "x", "/_coord/journal", "/a//b"} {
			_, err := coord.Inspect(context.Background(), c, path, nil)
			wantErr(w.t, err, coord.ErrBadPath)
		}
		_, err := coord.Inspect(context.Background(), c, "/a", &coord.InspectOptions{MaxReads: -1})
		wantErr(w.t, err, coord.ErrInvalid)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err = coord.Inspect(ctx, c, "/a", nil)
		wantErr(w.t, err, context.Canceled)
		c.Close()
		_, err = coord.Inspect(context.Background(), c, "/a", nil)
		wantErr(w.t, err, coord.ErrClosed)
	})
}

// inspectMake makes nodes as an outsider, with a session of the test. Data comes
// behind "=".
func inspectMake(w *world, mode backend.CreateMode, nodes ...string) {
	w.t.Helper()
	s := w.session("outsider")
	for _, node := range nodes {
		path, data, _ := strings.Cut(node, "=")
		path = w.path(path)
		dir, name := filepath.Split(path)
		before := len(children(w.t, w.Link("outsider"), filepath.Clean(dir)))
		w.eventually("the node "+name+" is made", func() bool {
			_, err := s.Commit(context.Background(), backend.Create(path, []byte(data), mode))
			if errors.Is(err, backend.ErrUncertain) { // the machine is busy
				return len(children(w.t, w.Link("outsider"), filepath.Clean(dir))) > before
			}
			if err != nil {
				w.t.Fatal(err)
			}
			return true
		})
	}
}
