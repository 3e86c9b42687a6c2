//! Licence expressions such as `(MIT OR Apache-2.0) AND Unicode-3.0` (SPDX 2.3, annex D).

/// Whether some choice among the expression's licences consists of allowed ones only. Cargo's older way
/// of writing OR, a slash, is understood as well.
pub fn allowed(expression: &str, allow: &[String]) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, allow };
    let satisfied = parser.any()?;
    match parser.words {
        [] => Ok(satisfied),
        [word, ..] => Err(format!("'{word}' is out of place in the licence '{expression}'")),
    }
}

struct Parser<'a> {
    words: &'a [&'a str],
    allow: &'a [String],
}

impl Parser<'_> {
    fn any(&mut self) -> Result<bool, String> {
        let mut satisfied = self.all()?;
        while self.take("OR") {
            satisfied |= self.all()?;
        }
        Ok(satisfied)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut satisfied = self.one()?;
        while self.take("AND") {
            satisfied &= self.one()?;
        }
        Ok(satisfied)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let satisfied = self.any()?;
            return if self.take(")") { Ok(satisfied) } else { Err("a parenthesis is not closed".into()) };
        }
        let mut licence = self.name()?;
        if self.take("WITH") {
            licence = format!("{licence} WITH {}", self.name()?);
        }
        Ok(self.allow.contains(&licence))
    }

    fn name(&mut self) -> Result<String, String> {
        match self.words.split_first() {
            Some((word, rest)) if !["(", ")", "AND", "OR", "WITH"].contains(word) => {
                self.words = rest;
                Ok((*word).to_owned())
            }
            Some((word, _)) => Err(format!("'{word}' is not a licence")),
            None => Err("a licence is missing".into()),
        }
    }

    fn take(&mut self, word: &str) -> bool {
        match self.words.split_first() {
            Some((first, rest)) if *first == word => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(expression: &str) -> Result<bool, String> {
        allowed(expression, &["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"].map(String::from))
    }

    #[test]
    fn expressions() {
        for yes in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/GPL-3.0",
            "MIT AND (GPL-3.0 OR Zlib)",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert_eq!(check(yes), Ok(true), "{yes}");
        }
        for no in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR Zlib) AND GPL-3.0",
            "Apache-2.0",
            "MIT WITH LLVM-exception",
        ] {
            assert_eq!(check(no), Ok(false), "{no}");
        }
        for malformed in ["", "MIT OR", "(MIT", "MIT)", "MIT Zlib", "AND MIT", "MIT WITH"] {
            assert!(check(malformed).is_err(), "{malformed}");
        }
        assert_eq!(check("GPL-3.0 AND MIT OR Zlib"), Ok(true), "AND binds closer than OR");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(MIT|OR|AND|WITH|[()/ ]|GPL){0,12}") {
            let _ = check(&text);
        }
    }
}
