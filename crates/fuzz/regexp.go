// Reads pairs of lines, a regular expression and a text. Prints "!" if Go rejects the expression, "+" if it matches the text,
// otherwise "-".
package main

import (
	"bufio"
	"os"
	"regexp"
)

func main() {
	in := bufio.NewReader(os.Stdin)
	for {
		pattern, _ := in.ReadString('\n')
		text, err := in.ReadString('\n')
		if err != nil {
			return
		}
		answer := "!"
		if expression, err := regexp.Compile(pattern[:len(pattern)-1]); err == nil {
			answer = "-"
			if expression.MatchString(text[:len(text)-1]) {
				answer = "+"
			}
		}
		os.Stdout.WriteString(answer)
	}
}
