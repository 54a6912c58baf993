package mutants

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// Each row fits a copy of its source in another package and file, where its declaration is exported
// or not any more, no name is qualified by one of our packages, and each line ends in a comment.
// It makes the same defect there.
func TestEachRowSurvivesAMove(t *testing.T) {
	r, err := here()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]*place)
	for _, p := range places(t, list) {
		files[p.file] = append(files[p.file], p)
	}
	header := regexp.MustCompile(`(?s)^.*?\npackage \w+`)
	for _, of := range files {
		names := make(map[string]bool)
		for _, p := range of {
			names[p.title[strings.LastIndexByte(p.title, '.')+1:]] = true
		}
		text := of[0].source
		for _, w := range slices.Backward(r.words(text)) {
			if w.qualified {
				w.text = w.text[strings.IndexByte(w.text, '.')+1:]
			}
			if names[w.text] {
				w.text = otherCase(w.text)
			}
			text = text[:w.begin] + w.text + text[w.end:]
		}
		text = strings.ReplaceAll(header.ReplaceAllString("\n"+text, "package moved"), "\n", " // moved\n\n")
		moved, err := read(fstest.MapFS{"moved/moved.go": {Data: []byte(text)}})
		if err != nil {
			t.Fatal(err)
		}
		moved.packages = r.packages
		for _, p := range of {
			row := *p.mutant
			row.decl = strings.TrimPrefix(row.decl, p.pkg+".")
			q, err := moved.place(&row)
			if err != nil {
				t.Error(err)
			} else if a, b := r.defect(p), r.defect(q); a != b {
				t.Errorf("%s is another defect in moved source:\n%s\nfor\n%s", p.name, b, a)
			}
		}
	}
}

// defect returns the words of a declaration with its defect, as they are compared.
func (r *repository) defect(p *place) string {
	var keys []string
	for _, w := range r.words(p.source[p.from:p.begin] + p.text + p.source[p.end:p.to]) {
		keys = append(keys, w.key)
	}
	return strings.Join(keys, " ")
}

func otherCase(name string) string {
	if ast.IsExported(name) {
		return strings.ToLower(name[:1]) + name[1:]
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

// The names in a defect are spelt as in the source that it is put into.
func TestADefectIsSpeltAsItsSource(t *testing.T) {
	row := &mutant{"", "take", "n := l.take(core.Once, n); if n == nil { return }", "n := l.take(2*core.Once, n); core.Log(n)", ""}
	for source, want := range map[string]string{
		"package coord\n\nfunc (l *lane[T]) take() {\n\tn := l.take(core.Once, n)\n\tif n == nil {\n\t\treturn\n\t}\n}\n":                "n := l.take(2*core.Once, n); core.Log(n)",
		"package core\n\nfunc (l *Lane) Take() {\n\tN := l.Take( // here\n\t\tOnce,\n\t\tN,\n\t)\n\tif N == nil {\n\t\treturn\n\t}\n}\n": "N := l.Take(2*Once, N); core.Log(N)",
		"package coord\n\nfunc (l *lane) take() {\n\tn := l.take(core.Twice, n)\n\tif n == nil {\n\t\treturn\n\t}\n}\n":                  "",
		"package coord\n\nfunc (l *lane) put() {\n\tn := l.take(core.Once, n)\n\tif n == nil {\n\t\treturn\n\t}\n}\n":                    "",
	} {
		r, err := read(fstest.MapFS{"a.go": {Data: []byte(source)}})
		if err != nil {
			t.Fatal(err)
		}
		r.packages["core"] = true
		switch p, err := r.place(row); {
		case err != nil && want != "":
			t.Error(err)
		case err == nil && p.text != want:
			t.Errorf("the defect in\n%s\nis %q, and not %q", source, p.text, want)
		}
	}
}
