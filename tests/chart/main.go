// Renders the chart as Helm does, for machines without Helm: Go's templates and sprig's functions are Helm's own, `include` and `toYaml` are
// written here as Helm has them. Prints all documents. GO111MODULE=off GOPATH=/usr/share/gocode go run tests/chart/main.go CHART [KEY=VALUE]...
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"github.com/ghodss/yaml"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func read(path string) map[string]interface{} {
	text, err := os.ReadFile(path)
	check(err)
	values := map[string]interface{}{}
	check(yaml.Unmarshal(text, &values))
	return values
}

func main() {
	folder := os.Args[1]
	values := read(filepath.Join(folder, "values.yaml"))
	for _, set := range os.Args[2:] {
		key, value, _ := strings.Cut(set, "=")
		at, path := values, strings.Split(key, ".")
		for _, part := range path[:len(path)-1] {
			at = at[part].(map[string]interface{})
		}
		last := path[len(path)-1]
		var list []interface{}
		if value == "null" {
			delete(at, last)
		} else if yaml.Unmarshal([]byte(value), &list) == nil {
			at[last] = list
		} else {
			at[last] = value
		}
	}
	chart := map[string]interface{}{}
	for key, value := range read(filepath.Join(folder, "Chart.yaml")) {
		chart[strings.ToUpper(key[:1])+key[1:]] = value
	}
	// Helm refuses what is not there where something is looked up in it; a missing value itself is empty.
	all := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text strings.Builder
		err := all.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	all.Funcs(functions)
	files, err := filepath.Glob(filepath.Join(folder, "templates", "*"))
	check(err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		check(err)
		_, err = all.New(filepath.Base(file)).Parse(string(text))
		check(err)
	}
	data := map[string]interface{}{
		"Values":  values,
		"Chart":   chart,
		"Release": map[string]interface{}{"Name": "orders", "Service": "Helm", "Namespace": "default"},
	}
	for _, file := range files {
		if filepath.Ext(file) == ".yaml" {
			fmt.Println("---")
			check(all.ExecuteTemplate(os.Stdout, filepath.Base(file), data))
		}
	}
}
